# Read by nginx's auto/make.  nginx has one CFLAGS for C and C++, so what only
# C++ understands is added for our objects alone, by name: a pattern could
# match objects of other modules.

idempotency_objs=

for idempotency_source in $idempotency_sources; do
    idempotency_objs="$idempotency_objs \
        $NGX_OBJS/addon/${idempotency_source%.cpp}.o"
done

# Debian's flags for C have one that C++ does not know, and nginx's -Werror makes
# that an error.
#
# nginx's headers do not stand our warnings, hence -isystem, which overrides
# the -I that nginx gives for the same folders.

cat << END >> $NGX_MAKEFILE

IDEMPOTENCY_OBJS = `echo $idempotency_objs`

\$(IDEMPOTENCY_OBJS): CFLAGS := \
	\$(filter-out -Werror=implicit-function-declaration,\$(CFLAGS))
\$(IDEMPOTENCY_OBJS): CFLAGS += -std=c++20 -fno-exceptions -fno-rtti \\
	-fno-threadsafe-statics -fvisibility=hidden \\
	-Wextra -Wshadow -Wnon-virtual-dtor \\
	-Wimplicit-fallthrough -MMD -MP \\
	-I $ngx_addon_dir/src -I $NGX_OBJS/addon \$(patsubst -I,-isystem,\$(ALL_INCS))

# The status page, as a string that needs no escaping.

$NGX_OBJS/addon/module/status_page.inc: $ngx_addon_dir/src/module/status.html
	(printf 'R"page('; cat $ngx_addon_dir/src/module/status.html; \\
		printf ')page"') > \$@

$NGX_OBJS/addon/module/status_page.o: $NGX_OBJS/addon/module/status_page.inc

-include \$(IDEMPOTENCY_OBJS:.o=.d)

END
