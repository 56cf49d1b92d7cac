package Nemesis;

# Whatever can go wrong does, in an order that follows from the seed alone.
# Writes down what it did: who was killed, who stood still from when to when,
# and when the store was out of reach.

use v5.36;

use List::Util qw(shuffle);
use Time::HiRes qw(sleep);

use Http1 ();
use Idle ();
use Lines;
use Site;
use Waiting qw(wait_quietly);
use Workload;

# The next one strikes so many seconds after the last.
my @GAP = (0.5, 1.0);
my $FILL_KEYS = 300;
my $LONGEST_LEAVE = 60;

# As without/limits.patch has it.
our $LONGEST_LATE = 4;
our $BUDGET = 256 << 10;

my @ALWAYS = qw(worker_kill nginx_kill reload nginx_quit worker_stop worker_stop worker_stop
    worker_pause net_reset net_reset net_stall net_drop app_kill app_kill zone_fill clock);
my @WITH_FILE = qw(nginx_kill boot boot upgrade upgrade other_path clock);
my @WITH_DISK = qw(disk_freeze disk_error disk_error boot);

# Only where the module keeps little, see without/limits.patch.
my %IF_SMALL = (redis => [qw(redis_away_long redis_away_long)]);
my @WITH_REDIS = qw(redis_kill redis_stop redis_pause redis_reset redis_stall redis_drop
    redis_flush redis_flush redis_forget redis_crawl redis_moves redis_moves
    redis_forgets_at_reload redis_forgets_at_start worker_busy worker_busy worker_busy);

# Where what is promised is promised of hosts that live.
my @OF_DYING_HOSTS = qw(worker_kill nginx_kill reload nginx_quit worker_stop worker_pause
    redis_forgets_at_reload redis_forgets_at_start worker_busy);

# ---- the plan -------------------------------------------------------------

# world, seconds, grace (of a failover), hosts_live, cut_off, loss => seconds, all or flush,
# progress, small_limits => of the module, so that outages can be longer
sub new ($class, %opt) {
    my $world = $opt{world};
    my $self = bless { loss => 'seconds', %opt, say => append_to($world->path('events')), later => [], done => {} },
        $class;
    $self->{plan} = [plan($world->{seed}, $opt{seconds}, $world->{instances},
        $world->{store}, $opt{hosts_live},
        $world->{disk} ? @WITH_DISK : (),
        $opt{small_limits} ? @{ $IF_SMALL{ $world->{store} } // [] } : ())];
    if ($world->{sentinels}) {
        require Failovers;
        $self->{failovers} = Failovers->new(nemesis => $self,
            map { $_ => $opt{$_} } qw(world grace hosts_live cut_off));
    }
    return $self;
}

# All kinds come before one comes again.
sub plan ($seed, $seconds, $instances, $store, $hosts_live = 0, @more) {
    my %spared = $hosts_live ? map { $_ => 1 } @OF_DYING_HOSTS : ();
    srand(Workload::dice("$seed nemesis"));
    my @kinds = grep { !$spared{$_} } @ALWAYS, $store eq 'redis' ? @WITH_REDIS : (),
        $store eq 'file' ? @WITH_FILE : (),
        $store eq 'cluster' ? @ClusterNemesis::KINDS : (), @more;
    # The rarest trouble first: an owner that comes back needs a successor.
    my @deck = grep { !$spared{$_} } qw(worker_stop worker_stop);
    my @plan;
    for (my $t = 1; $t < $seconds; $t += $GAP[0] + rand $GAP[1]) {
        @deck = shuffle(@kinds) if !@deck;
        push @plan, {
            at => $t, kind => shift @deck, instance => int rand $instances,
            dice => [map { rand } 1 .. 3],
        };
    }
    srand();
    return @plan;
}

# ---- the deed -------------------------------------------------------------

sub strike ($self, $began) {
    $self->{began} = $began;
    for my $fault (@{ $self->{plan} }) {
        return if $self->{progress} && $self->{progress}->is_over;
        $self->do_until($began + $fault->{at});
        my $method = $self->can($fault->{kind});
        my $instance = $self->{world}->site->{instances}[$fault->{instance}];
        my $done = $self->$method($instance, @{ $fault->{dice} });
        $self->{done}{ $fault->{kind} }++ if $done;
        $self->{failovers}->strike if $self->{failovers};
    }
    $self->do_until($began + $self->{seconds});
}

# What was begun is undone when its time comes.
sub do_until ($self, $time) {
    while (1) {
        my $next = $self->{later}[0];
        last if !$next || $next->{at} > $time;
        sleep_until($next->{at});
        shift @{ $self->{later} };
        $next->{action}->();
    }
    sleep_until($time);
}

sub sleep_until ($time) {
    my $left = $time - now();
    sleep $left if $left > 0;
}

sub after ($self, $seconds, $action) {
    @{ $self->{later} } = sort { $a->{at} <=> $b->{at} }
        @{ $self->{later} }, { at => now() + $seconds, action => $action };
}

# All is well again, at once.
sub end ($self) {
    $_->{proxy}->tell('pass') for $self->{world}->site->instances;
    while (my $next = shift @{ $self->{later} }) {
        # A failover takes its time.
        $self->{failovers} && $self->{failovers}->is_busy ? sleep_until($next->{at}) : sleep 0.02;
        $next->{action}->();
    }
    $self->store_away(1) if $self->{failovers};
}

sub write_down ($self, $what, %fields) {
    $self->{say}->(what => $what, %fields);
}

sub faults ($self) {
    return (%{ $self->{done} }, $self->{failovers} ? $self->{failovers}->faults : ());
}

# ---- workers --------------------------------------------------------------

sub one_worker ($instance, $dice) {
    my @workers = $instance->{up} ? Site::workers_of($instance) : ();
    return $workers[$dice * @workers];
}

sub worker_kill ($self, $instance, $dice, @) {
    my $pid = one_worker($instance, $dice) // return 0;
    $self->write_down('killed', pids => $pid, instance => $instance->{number});
    kill KILL => $pid;
    $self->{maimed}{ Site::life_name($instance) } = 1;
    return 1;
}

sub has_killed_worker ($self, $instance) {
    return $self->{maimed}{ Site::life_name($instance) };
}

# Longer than its lease, so that others take over, and back while they run.
sub worker_stop ($self, $instance, $dice, $long, @) {
    return $self->stop_worker($instance, $dice, $LEASE * (1.3 + 2 * $long ** 2));
}

sub worker_pause ($self, $instance, $dice, $long, @) {
    return $self->stop_worker($instance, $dice, $LEASE * 0.5 * $long);
}

# It does something else for as long, while it waits for replies of Redis: these
# are what it sees first when it goes on. One that was stopped would look at its
# timers first.
sub worker_busy ($self, $instance, $dice, $long, @) {
    return 0 if !$self->has_redis || !$instance->{up} || !$self->{world}->site->has_lua;
    my $seconds = $LEASE * (1.3 + 2 * $long ** 2);
    $self->part_from_redis($instance, 'mute', 0.2);
    $self->after(0.1, sub {
        push @{ $self->{fillers} }, $self->{world}->spawn(sub { $self->keep_busy($instance, $seconds) });
    });
    return 1;
}

# Which worker it was is known afterwards.
sub keep_busy ($self, $instance, $seconds) {
    my $t = now();
    # It may be killed meanwhile.
    my $said = eval { Http1::request($instance->{port}{stub}, 'GET', "/busy?$seconds") } // {};
    my ($pid) = ($said->{body} // '') =~ /^(\d+)$/ or return;
    $self->write_down('stopped', t => $t, pid => $pid, instance => $instance->{number});
    $self->write_down('continued', pid => $pid);
}

sub stop_worker ($self, $instance, $dice, $seconds) {
    my $pid = one_worker($instance, $dice) // return 0;
    return 0 if $self->{still}{$pid}++;
    $self->write_down('stopped', pid => $pid, instance => $instance->{number});
    kill STOP => $pid;
    $self->after($seconds, sub {
        delete $self->{still}{$pid};
        $self->write_down('continued', pid => $pid);
        kill CONT => $pid;
    });
    return 1;
}

# ---- nginx ----------------------------------------------------------------

sub nginx_kill ($self, $instance, $dice, @) {
    return 0 if !$instance->{up};
    # Before and after: who dies in between is on one side of it.
    my %whose = (instance => $instance->{number});
    $self->write_down('killed', %whose, pids => join(' ', $instance->{nginx}->processes));
    $self->write_down('killed', %whose, pids => join(' ', Site::kill_whole($instance)));
    $self->after(0.2 + $dice, sub { $self->start_again($instance) });
    return 1;
}

sub reload ($self, $instance, @) {
    return 0 if !$instance->{up};
    $self->write_down('reloaded', instance => $instance->{number});
    kill HUP => $instance->{nginx}->master_pid;
    return 1;
}

sub nginx_quit ($self, $instance, $dice, @) {
    return 0 if !$instance->{up};
    $self->write_down('quits', instance => $instance->{number});
    kill QUIT => $instance->{nginx}->masters;
    $instance->{up} = 0;
    push @{ $self->{quitting} }, { nginx => $instance->{nginx}, t => now() };
    $self->after(0.2 + 0.5 * $dice, sub { $self->start_again($instance) });
    return 1;
}

# As if the machine had lost its power; its clock is wrong afterwards. On a disk
# of its own what was not written is lost, elsewhere nothing is.
sub boot ($self, $instance, $dice, $other, @) {
    my $site = $self->{world}->site;
    $instance = $site->{instances}[$site->{faketime}] if defined $site->{faketime};
    $self->nginx_kill($instance, $dice) or return 0;
    my @jumps = (-86400 * 30, 3600, 86400 * 30, 86400 * 60);
    $site->set_clock($instance, $jumps[$other * @jumps]) if $site->has_clock($instance);
    my $disk = $instance->{number} == $Site::WITH_DISK ? $self->{world}{disk} : undef;
    my $t = now();
    my $lost = $disk && !$self->{disk_busy} && $disk->lose_power;
    $self->write_down('power lost', t => $t, instance => $instance->{number}) if $lost;
    return $site->feign_boot($instance) || $lost;
}

# The new binary beside the old one for a while.
sub upgrade ($self, $instance, $dice, @) {
    return 0 if !$instance->{up};
    my $nginx = $instance->{nginx};
    $self->write_down('upgraded', instance => $instance->{number});
    $self->{world}->site->upgrade($instance) or return 0;
    $self->after($dice * 2, sub { $nginx->end_upgrade });
    return 1;
}

# The same module from another file, as a new build is loaded without a restart;
# later a new binary.
sub other_path ($self, $instance, $dice, $long, @) {
    return 0 if !$instance->{up};
    $self->write_down('reloaded', instance => $instance->{number});
    $self->{world}->site->load_from_other_path($instance);
    $self->after(0.5 + $long, sub { $self->upgrade($instance, $dice) });
    return 1;
}

# ---- disk -----------------------------------------------------------------

# Everybody who writes to the file stands still.
sub disk_freeze ($self, $instance, $dice, @) {
    my ($world, $seconds) = ($self->{world}, 0.2 + 2 * $dice);
    $instance = $world->site->{instances}[$Site::WITH_DISK];
    return 0 if !$instance->{up} || $self->{disk_busy}++;
    my @workers = Site::workers_of($instance);
    $self->write_down('stopped', pid => $_, instance => $instance->{number}) for @workers;
    $self->store_away($seconds + 0.5, $instance);
    $world->spawn(sub { $world->{disk}->freeze_for($seconds) });
    $self->after($seconds + 0.5, sub {
        $self->write_down('continued', pid => $_) for @workers;
        $self->{disk_busy} = 0;
    });
    return 1;
}

# What is written is lost, and whoever waits for it is told so.
sub disk_error ($self, $instance, $dice, @) {
    my ($world, $seconds) = ($self->{world}, 0.3 + 3 * $dice);
    $instance = $world->site->{instances}[$Site::WITH_DISK];
    return 0 if !$world->{disk} || $self->{disk_busy}++;
    $self->store_away($seconds + 1, $instance, how => 'write error');
    $world->{disk}->fail;
    $self->after($seconds, sub {
        $world->{disk}->mend;
        $self->{disk_busy} = 0;
    });
    return 1;
}

# ---- back again -----------------------------------------------------------

# A worker that stands still holds on to its ports, and one that is left to
# its file.
sub start_again ($self, $instance, $until = now() + $LONGEST_LEAVE) {
    return if $instance->{up};
    if (!Site::ports_free($instance) || $self->{world}{store} eq 'file' && !$instance->{nginx}->reaped) {
        die "nginx $instance->{number} does not leave\n" if now() > $until;
        return $self->after(0.1, sub { $self->start_again($instance, $until) });
    }
    if ($self->{world}->site->start($instance)) {
        return $self->write_down('started', instance => $instance->{number});
    }
    die "nginx $instance->{number} does not start again: " . $instance->{nginx}->error_log if now() > $until;
    $self->after(0.5, sub { $self->start_again($instance, $until) });
}

# Of those that were asked to leave, how many have not in so many seconds.
sub still_quitting ($self, $seconds) {
    my @left = @{ $self->{quitting} // [] };
    wait_quietly(sub { !grep { !$_->{nginx}->reaped } @left }, $seconds) if @left;
    return scalar grep { !$_->{nginx}->reaped } @left;
}

sub clock ($self, $instance, $dice, @) {
    my $site = $self->{world}->site;
    return 0 if !defined $site->{faketime};
    my @jumps = (-86400 * 30, -3600, -2, 0, 2, 3600, 86400 * 30);
    $site->set_clock($site->{instances}[$site->{faketime}], $jumps[$dice * @jumps]);
    return 1;
}

# ---- network --------------------------------------------------------------

my @NETS = qw(h1 h2 app app);

sub net_reset ($self, $instance, $dice, @) {
    $instance->{proxy}->tell('reset ' . $NETS[$dice * @NETS]);
    return 1;
}

sub net_stall ($self, $instance, $dice, $long, @) {
    return $self->hold_network($instance, 'stall', $NETS[$dice * @NETS], 0.3 + 5 * $long);
}

sub net_drop ($self, $instance, $dice, $long, @) {
    return $self->hold_network($instance, 'drop', $NETS[$dice * @NETS], 0.3 + 5 * $long);
}

sub hold_network ($self, $instance, $how, $link, $seconds) {
    $self->write_down('network stands still', link => $link, instance => $instance->{number},
        until => now() + $seconds);
    $instance->{proxy}->tell("$how $link $seconds");
    return 1;
}

# ---- application ----------------------------------------------------------

sub app_kill ($self, $instance, $dice, $long, @) {
    my $world = $self->{world};
    my $app = $world->{apps}[$dice * @{ $world->{apps} }];
    return 0 if !$app->{pid};
    $world->end_process($app->{pid});
    $self->write_down('app killed', app => $app->{name});
    $app->{pid} = undef;
    $self->after(0.1 + 0.5 * $long, sub { $world->start_app($app) });
    return 1;
}

# ---- store ----------------------------------------------------------------

# More keys than the small zone has room for.
sub zone_fill ($self, $instance, @) {
    return 0 if !$instance->{up};
    my $world = $self->{world};
    my $name = 'fill' . ++$self->{fills};
    push @{ $self->{fillers} }, $world->spawn(sub { fill($world, $instance, $name) });
    return 1;
}

sub fill ($world, $instance, $name) {
    my $client = $world->client($name);
    for my $i (1 .. $FILL_KEYS) {
        $client->ask({ name => "small-$name-$i", route => 'small' },
            instance => $instance->{number}, proto => 'h1', via => 'direct',
            kind => 'right', wish => 'size=10', phase => 'fill');
    }
}

sub wait_for_fillers ($self) {
    $self->{world}->wait_for(20, @{ $self->{fillers} // [] });
}

# Redis is reached again some time after it is there again.
sub store_away ($self, $seconds, $instance = undef, %more) {
    $self->write_down('store away', until => now() + $seconds,
        defined $instance ? (instance => $instance->{number}) : (), %more);
}

sub has_redis ($self) { return $self->{world}{redis_pid} && !$self->{redis_still} }

sub redis_kill ($self, $instance, $dice, @) {
    return 0 if !$self->has_redis;
    $self->crash_redis(0.2 + 1.5 * $dice);
    return 1;
}

# kill -9, and a new start after some seconds. It is away until it really answers.
# lose: what happens to its files meanwhile; true if records are lost by that.
# since: those that were written from then on. vanish: nobody is told that it has
# gone, and its successor has the same address. then: what else happens then.
sub crash_redis ($self, $seconds, %opt) {
    my $world = $self->{world};
    my $site = $world->site;
    my $t = now();
    if ($opt{vanish}) { $_->{proxy}->tell('stall redis') for $site->instances }
    $world->end_process($world->{redis_pid});
    $world->{redis_pid} = undef;
    my $lost = $opt{lose} && $opt{lose}->();
    $self->after($seconds, sub {
        $world->start_redis($opt{vanish});
        if ($opt{vanish}) {
            $_->{proxy}->tell('move redis ' . $site->redis_port($_->{number})) for $site->instances;
        }
        $opt{then}->() if $opt{then};
        $world->wait_for_redis;
        my %when = (t => $t, until => now());
        $self->write_down('store away', %when);
        $self->write_down('memory lost', %when, how => 'restart', since => $opt{since}) if $lost;
    });
}

# A crash loses what was not on the disk yet, by --loss: the last seconds, as with
# "appendfsync everysec", or all of it.
sub lose_redis ($self, $dice, $long, %opt) {
    my $world = $self->{world};
    return 0 if !$self->has_redis;
    my $seconds = $opt{seconds} // 0.1 + 0.7 * $dice;
    if ($self->{loss} eq 'all') {
        $self->crash_redis($seconds, %opt, lose => sub { $world->forget_redis; 1 });
        return 1;
    }
    my ($since, $mark) = (now(), $world->mark_redis);
    $self->after(0.3 + 2 * $long, sub {
        $self->crash_redis($seconds, %opt, since => $since, lose => sub { $world->cut_redis($mark) })
            if $self->has_redis;
    });
    return 1;
}

sub redis_forget ($self, $instance, $dice, $long, @) { return $self->lose_redis($dice, $long) }

# Longer than any limit inside a worker, where these are small.
sub redis_away_long ($self, $instance, $dice, $long, @) {
    return $self->lose_redis($dice, $long, seconds => $LONGEST_LATE + 1 + 2 * $dice);
}

# The machine vanishes without a reset, and another has its address a second later.
sub redis_moves ($self, $instance, $dice, $long, @) {
    return $self->lose_redis($dice, $long, vanish => 1, seconds => 0.7 + 0.6 * $dice);
}

# Workers start in the moment in which Redis is back.
sub redis_forgets_at_reload ($self, $instance, $dice, $long, @) {
    return $self->lose_redis($dice, $long, then => sub { $self->reload($instance) });
}

sub redis_forgets_at_start ($self, $instance, $dice, $long, $which) {
    return $self->lose_redis($dice, $long, then => sub { $self->worker_kill($instance, $which) });
}

# Records vanish, and nobody notices: those whose owners renew them, and put them
# back when they do; with --loss flush all of them.
my $LOSE_RUNNING = q{for _, key in ipairs(redis.call('KEYS', 'idem:*')) do }
    . q{local head = redis.call('GETRANGE', key, 0, 69) }
    . q{if #head == 70 and head:byte(2) == 1 then }
    . q{local given, lease = struct.unpack('<I8I8', head, 55) }
    . q{if given - redis.call('PTTL', key) < lease then redis.call('DEL', key) end end end};

sub redis_flush ($self, @) {
    return 0 if !$self->has_redis;
    my $all = $self->{loss} eq 'flush';
    my $t = now();
    Idle::ask_redis($self->{world}, $all ? 'FLUSHALL' : qq(EVAL "$LOSE_RUNNING" 0));
    $self->write_down('memory lost', t => $t, until => now(), how => $all ? 'flush' : 'running');
    return 1;
}

# It is slower than the load.
sub redis_crawl ($self, $instance, $dice, $long, @) {
    return $self->part_from_redis($instance, 'crawl', 1 + 3 * $long);
}

sub redis_stop ($self, $instance, $dice, @) { return $self->stop_redis($LEASE * (1.2 + 2 * $dice)) }

sub redis_pause ($self, $instance, $dice, @) { return $self->stop_redis(0.05 + 0.4 * $dice) }

sub stop_redis ($self, $seconds) {
    my $pid = $self->{world}{redis_pid};
    return 0 if !$pid || $self->{redis_still};
    $self->{redis_still} = 1;
    $self->store_away($seconds);
    kill STOP => $pid;
    $self->after($seconds, sub { $self->{redis_still} = 0; kill CONT => $pid });
    return 1;
}

sub redis_reset ($self, $instance, @) {
    $self->store_away(0.1, $instance);
    $instance->{proxy}->tell('reset redis');
    return 1;
}

sub redis_stall ($self, $instance, $dice, $long, @) {
    return $self->part_from_redis($instance, 'stall', 0.2 + 3 * $long);
}

sub redis_drop ($self, $instance, $dice, $long, @) {
    return $self->part_from_redis($instance, 'drop', 0.2 + 3 * $long);
}

sub part_from_redis ($self, $instance, $how, $seconds) {
    $self->store_away($seconds, $instance);
    $instance->{proxy}->tell("$how redis $seconds");
    return 1;
}

1;
