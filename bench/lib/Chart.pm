package Chart;

# Bars of the ratios that Report makes, as SVG.

use v5.36;

my @COLUMNS = (
    ['small new', '300 B, new'], ['small replay', '300 B, replay'],
    ['json new', '16 KiB JSON request, new'], ['json replay', '16 KiB JSON request, replay'],
    ['large new', '64 KiB answer, new'], ['large replay', '64 KiB answer, replay'],
);
my ($WIDTH, $LABEL, $BAR, $ROW, $GAP) = (880, 230, 170, 16, 46);

# Two panels beside each other, new and replay, for each of three themes.
sub svg ($rows) {
    my @rows = grep { $_->{id} !~ /^(off|nokey|memory2)$/ } @$rows;
    my $panel = $ROW * @rows + $GAP;
    my $height = 3 * $panel + 30;
    my $out = <<"END";
<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 $WIDTH $height" width="$WIDTH" height="$height" font-family="sans-serif" font-size="11">
<title>CPU time of a request against what nginx could do at best</title>
<rect width="$WIDTH" height="$height" fill="#ffffff"/>
END
    for my $i (0 .. $#COLUMNS) {
        my $x = $LABEL + ($i % 2) * ($WIDTH - $LABEL) / 2;
        $out .= panel($COLUMNS[$i], \@rows, $x, 30 + int($i / 2) * $panel, $i % 2 == 0);
    }
    return $out . "</svg>\n";
}

sub panel ($column, $rows, $x, $y, $with_names) {
    my ($id, $title) = @$column;
    my $bottom = $y + $ROW * @$rows;
    my $out = text($x, $y - 8, $title, 'font-weight="bold"');
    for my $share (0.5, 1) {
        my $at = $x + $BAR * $share;
        $out .= qq(<line x1="$at" x2="$at" y1="$y" y2="$bottom" stroke="#bbbbbb"/>\n)
            . text($at, $bottom + 12, $share == 1 ? '1 = limit' : $share, 'text-anchor="middle" fill="#777777"');
    }
    for my $i (0 .. $#$rows) {
        $out .= bar($rows->[$i], $id, $x, $y + $i * $ROW, $with_names);
    }
    return $out;
}

sub bar ($row, $id, $x, $y, $with_names) {
    my $value = $row->{ratio}{$id};
    my $own = $row->{name} =~ /^\*\*/;
    my $name = $row->{name} =~ s/\*//gr;
    my $baseline = $y + 11;
    my $out = $with_names ? text($LABEL - 8, $baseline, $name,
        'text-anchor="end"' . ($own ? ' font-weight="bold"' : '')) : '';
    return $out if !defined $value;
    return $out . text($x + 4, $baseline, 'wrong', 'fill="#aa0000"') if $value < 0;
    my $width = sprintf '%.1f', $BAR * ($value > 1.2 ? 1.2 : $value);
    my ($top, $height, $colour) = ($y + 2, $ROW - 4, $own ? '#1f6f8b' : '#b8b8b8');
    return $out . qq(<rect x="$x" y="$top" width="$width" height="$height" fill="$colour"/>\n)
        . text($x + $width + 4, $baseline, sprintf('%.2f', $value), '');
}

sub text ($x, $y, $words, $more) {
    return qq(<text x="$x" y="$y" $more>$words</text>\n);
}

1;
