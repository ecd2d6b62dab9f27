"""Where the time of a call goes: sorts the samples of `perf script` into the stages of the path.

    RUSTFLAGS="-C force-frame-pointers=yes" cargo build --release --locked -p tollgate-cli
    target/benches/release/tollgate-bench-gateway --only proxied &
    perf record -e cpu-clock -F 4000 -g --call-graph fp -p PID_OF_THE_GATEWAY -- sleep 7
    perf script -F comm,ip,sym | python3 benches/gateway/shares.py

A sample belongs to the first rule that fits its innermost frames. Never: guesses; what fits nothing is
the HTTP library and the runtime, which are most of what has no name of ours on its stack.
"""
import collections
import re
import sys

WRITES = re.compile(r"__sys_sendto|sys_writev|sys_sendfile|__sys_sendmsg")
READS = re.compile(r"recvfrom|epoll")
LEAVES = [
    ("reading the clock", re.compile(r"clock_gettime|ledger::clock")),
    ("moving memory", re.compile(r"memmove|memcpy")),
    ("allocation", re.compile(r"^_?mi_")),
]
STAGES = [
    ("ledger and permit", r"tollgate_ledger::|core::(turn|batch|fairness|limit|table|gate)|tollgate::permits|path::(permit|requested_limits)"),
    ("flight: key, table, end", r"tollgate::(flights|single_flight)|path::(flight|identity|merge)"),
    ("reading limits from the response", r"path::learn|core::feedback"),
    ("cache: key, store or not", r"path::(cache|serve|store|recorder|scrub)|core::fresh|tollgate::cache"),
    ("route: address, provider, entity", r"path::(route|destination|subject)|tollgate::(query|providers)|gateway::address|core::entity"),
    ("response headers that Tollgate adds", r"gateway::(rate_headers|head|links|handler)"),
    ("fast path for cache hits", r"gateway::hit_fast_path|path::hit"),
    ("the rest of the path", r"tollgate::(path|body|pool|credentials)"),
    ("watching the client connection", r"gateway::(watched_stream|client_connection|framing)"),
]
STAGES = [(name, re.compile(rule)) for name, rule in STAGES]


def stage(frames):
    """Whose a sample is; frames go from the innermost outwards."""
    if any("entry_SYSCALL" in frame or "asm_sysvec" in frame for frame in frames):
        if any(WRITES.search(frame) for frame in frames):
            return "kernel: writing, waking the other core"
        if any(READS.search(frame) for frame in frames):
            return "kernel: reading, waiting for events"
        return "kernel: other"
    for name, rule in LEAVES:
        if rule.search(frames[0]):
            return name
    for frame in frames:
        for name, rule in STAGES:
            if rule.search(frame):
                return name
    return "HTTP on both sides, tasks, timers"


def samples(lines):
    frames = []
    for line in lines:
        if line.startswith((" ", "\t")):
            parts = line.split(maxsplit=1)
            frames.extend(parts[1:])
        elif not line.strip() and frames:
            yield frames
            frames = []
    if frames:
        yield frames


found = collections.Counter(stage(frames) for frames in samples(sys.stdin))
total = sum(found.values())
if not total:
    sys.exit("no samples on standard input; see the first lines of this file for the commands")
for name, count in found.most_common():
    print(f"| {name} | {100 * count / total:.0f} % |")
