package Browser;

# A headless Chromium, by way of its driver.
#
#   my $browser = Browser->start;
#   $browser->go("http://127.0.0.1:$port/status");
#   $browser->run('return document.title');
#   $browser->keys('Tab', 'Enter');
#   $browser->media('dark');  $browser->size(360, 800);
#   $browser->screenshot('dark.png');
#   is_deeply([$browser->complaints], []);

use v5.36;

use File::Temp ();
use HTTP::Tiny;
use JSON::PP ();
use MIME::Base64 qw(decode_base64);

use FreePorts qw(free_ports);
use Running qw(run_aside end_process);
use Waiting qw(wait_until);

my %KEY = (Tab => "\x{E004}", Enter => "\x{E007}", Space => ' ');

sub start ($class) {
    my ($port) = free_ports(1);
    my $home = File::Temp->newdir('browser-XXXXXX', TMPDIR => 1);
    my $pid = run_aside(sub {
        $ENV{HOME} = "$home";
        open STDERR, '>', '/dev/null';
        exec 'chromedriver', "--port=$port", '--silent';
    });
    my $self = bless { pid => $pid, home => $home, http => HTTP::Tiny->new(timeout => 120),
        url => "http://127.0.0.1:$port" }, $class;
    wait_until(sub { $self->{http}->get("$self->{url}/status")->{success} }, 60, 'the driver')
        or die "chromedriver does not start\n";
    my $made = $self->call(POST => '/session', { capabilities => { alwaysMatch => {
        'goog:loggingPrefs' => { browser => 'ALL' },
        'goog:chromeOptions' => { args => [qw(--headless=new --no-sandbox --disable-gpu
            --disable-dev-shm-usage --no-first-run --disable-background-networking),
            "--user-data-dir=$home/profile"] },
    } } });
    $self->{session} = $made->{sessionId};
    return $self;
}

sub go ($self, $url) { $self->command(POST => '/url', { url => $url }) }

sub run ($self, $script, @arguments) {
    return $self->command(POST => '/execute/sync', { script => $script, args => \@arguments });
}

sub keys ($self, @keys) {
    $self->command(POST => '/actions', { actions => [{ type => 'key', id => 'keyboard',
        actions => [map { my $key = $KEY{$_} // $_;
            ({ type => 'keyDown', value => $key }, { type => 'keyUp', value => $key }) } @keys] }] });
}

# light or dark
sub media ($self, $scheme) {
    $self->cdp('Emulation.setEmulatedMedia',
        { features => [{ name => 'prefers-color-scheme', value => $scheme }] });
}

sub size ($self, $width, $height) {
    $self->cdp('Emulation.setDeviceMetricsOverride', { width => $width, height => $height,
        deviceScaleFactor => 1, mobile => JSON::PP::false });
    # As on a phone, where they lie above the page.
    $self->cdp('Emulation.setScrollbarsHidden', { hidden => JSON::PP::true });
}

sub cdp ($self, $name, $parameters = {}) {
    return $self->command(POST => '/goog/cdp/execute', { cmd => $name, params => $parameters });
}

# Of the whole page.
sub screenshot ($self, $path) {
    my $shot = $self->cdp('Page.captureScreenshot', { captureBeyondViewport => JSON::PP::true });
    open my $file, '>:raw', $path or die "$path: $!\n";
    print {$file} decode_base64($shot->{data});
}

# What is in the console, since the last time.
sub complaints ($self) {
    return map {"$_->{level}: $_->{message}"}
        @{ $self->command(POST => '/se/log', { type => 'browser' }) };
}

sub stop ($self) {
    my $pid = delete $self->{pid} or return;
    eval { $self->command(DELETE => '') };
    end_process($pid);
}

sub command ($self, $method, $path, $body = undef) {
    return $self->call($method, "/session/$self->{session}$path", $body);
}

sub call ($self, $method, $path, $body = undef) {
    my $response = $self->{http}->request($method, $self->{url} . $path,
        defined $body ? { content => JSON::PP::encode_json($body),
            headers => { 'Content-Type' => 'application/json' } } : {});
    my $answer = eval { JSON::PP::decode_json($response->{content}) };
    die "$method $path: $response->{content}\n" if !$response->{success};
    return $answer->{value};
}

sub DESTROY ($self) { $self->stop }

1;
