# No link in the documentation leads nowhere: files exist, and so do headings.

use v5.36;

use File::Basename qw(dirname);
use Test::More;
use Nginx;

memory_only('about files');

my @pages = ('README.md', glob 'docs/*.md docs/adr/*.md');
my %anchors = map { $_ => anchors_of($_) } @pages;

# ---- helpers --------------------------------------------------------------

# What is left when examples are taken away.
sub text_of ($page) {
    return Nginx::slurp($page) =~ s/^```.*?^```$//msgr;
}

# As they are made from headings where the pages are shown: letters, digits,
# "_" and "-" stay, and a repeated heading gets a number.
sub anchors_of ($page) {
    my (%anchors, %seen);
    for my $heading (text_of($page) =~ /^#+ +(.+)$/mg) {
        my $name = lc($heading =~ s/\[([^]]*)\]\([^)]*\)/$1/gr);
        $name =~ s/[^\w\- ]//g;
        $name =~ tr/ /-/;
        my $count = $seen{$name}++;
        $anchors{ $count ? "$name-$count" : $name } = 1;
    }
    return \%anchors;
}

# Why a link is wrong; nothing if it is not.
sub fault ($page, $link) {
    return '' if $link =~ m{^https?://};
    my ($path, $anchor) = split /#/, $link, 2;
    my $file = $path eq '' ? $page : dirname($page) . "/$path";
    1 while $file =~ s{(^|/)(?!\.\.)[^/]+/\.\./}{$1};
    $file =~ s{^\./}{};
    return 'no such file' if !-e $file;
    return '' if !defined $anchor;
    return 'no such heading' if !($anchors{$file} // anchors_of($file))->{$anchor};
    return '';
}

# ---- links ----------------------------------------------------------------

for my $page (@pages) {
    my @bad;
    for my $link (text_of($page) =~ /\]\(([^)\s]+)\)/g) {
        my $why = fault($page, $link);
        push @bad, "$link: $why" if $why;
    }
    is_deeply(\@bad, [], $page);
}

my %readme = map { $_ => 1 } text_of('README.md') =~ m{\]\((docs/\w[\w-]*\.md)}g;
is_deeply([grep { !$readme{$_} } glob 'docs/*.md'], [], 'README leads to every page');

done_testing;
