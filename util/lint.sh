# Style: clang-format for C++, shellcheck for these scripts.
# shellcheck shell=bash

cpp_files()
{
    find src t/unit t/fuzz t/chaos bench util -name '*.cpp' -o -name '*.h'
}


format()
{
    deps lint
    cpp_files | xargs -r clang-format-14 -i
}


lint()
{
    deps lint
    say "clang-format"
    cpp_files | xargs -r clang-format-14 --dry-run -Werror
    say "shellcheck"
    shellcheck -x build.sh util/*.sh .ci/run
}
