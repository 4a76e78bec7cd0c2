"""The command `keras-par trace`: one timeline of what TensorFlow profiled on all ranks, for Perfetto and Chrome."""

import argparse
import gzip
import importlib.util
import itertools
import json
from collections.abc import Iterator
from pathlib import Path

PROFILES = "**/plugins/profile/*/*.xplane.pb"  # where TensorFlow puts them below a log_dir


def add_parser(commands) -> None:
    """Adds the sub-command `trace` to the argparse sub-parsers `commands`."""
    parser = commands.add_parser(
        "trace",
        help="merge the ranks' TensorFlow profiles into one timeline, for ui.perfetto.dev or chrome://tracing",
        description=(
            "Merges what keras.callbacks.TensorBoard(log_dir=..., profile_batch=...) profiled on each rank into one "
            "timeline, in which one sees who waits for whom. It is opened by ui.perfetto.dev and chrome://tracing. "
            "Takes the last profile of each rank, and sets the hosts' clocks side by side as they are. Prints the "
            "file's path."
        ),
    )
    parser.add_argument("folder", type=Path, metavar="LOG_DIR", help="the log_dir of TensorBoard")
    parser.add_argument("-o", "--output", type=Path, metavar="FILE", help="default: LOG_DIR/trace.json.gz")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Writes the timeline and prints its path; returns 0.

    Raises:
        ValueError: the folder holds no profile, or one that cannot be read.
        OSError: the timeline cannot be written.
    """
    folder, output = arguments.folder, arguments.output or arguments.folder / "trace.json.gz"
    last = {path.parents[3]: path for path in sorted(folder.glob(PROFILES))}  # names of profiles are their times
    if not last:
        raise ValueError(
            f"keras-par: there is no profile in '{folder}': give the log_dir of a TensorBoard(profile_batch=...) whose "
            "batches were trained on."
        )
    kind = message_of_profiles()
    profiles = [(str(place.relative_to(folder)), read(path, kind)) for place, path in sorted(last.items())]
    with gzip.open(output, "wt", encoding="utf-8") as file:
        lines = map(json.dumps, events(profiles))
        file.write('{"traceEvents": [\n' + next(lines, ""))
        file.writelines(f",\n{line}" for line in lines)
        file.write("\n]}\n")
    print(output)
    return 0


def read(path: Path, kind):
    """A profile, of the class `kind`."""
    from google.protobuf.message import DecodeError

    try:
        return kind.FromString(path.read_bytes())
    except DecodeError as error:
        raise ValueError(f"keras-par: a profile is not whole: remove '{path}', and profile again.") from error


def message_of_profiles():
    """TensorFlow's class `XSpace`, without TensorFlow, which takes seconds to import and prints six lines."""
    tensorflow = importlib.util.find_spec("tensorflow")
    file = Path(tensorflow.origin).parent / "tsl" / "profiler" / "protobuf" / "xplane_pb2.py"
    found = importlib.util.spec_from_file_location("xplane_pb2", file)
    module = importlib.util.module_from_spec(found)
    found.loader.exec_module(module)
    return module.XSpace


def start(space) -> int:
    """When a profile began, in nanoseconds since 1970, from which its events count their times."""
    for plane in space.planes:
        for stat in plane.stats:
            if plane.stat_metadata[stat.metadata_id].name == "profile_start_time":
                return stat.uint64_value
    return 0


def events(profiles: list) -> Iterator[dict]:
    """The events of (name, profile) pairs in Chrome's trace format, in microseconds since the first profile began."""
    begin, numbers = min(start(space) for _, space in profiles), itertools.count()
    for name, space in profiles:
        for plane in filter(lambda plane: plane.lines, space.planes):
            process = next(numbers)
            yield {"ph": "M", "name": "process_name", "pid": process, "args": {"name": f"{name} {plane.name}"}}
            yield {"ph": "M", "name": "process_sort_index", "pid": process, "args": {"sort_index": process}}
            for thread, line in enumerate(plane.lines):
                same = {"pid": process, "tid": thread}
                yield {"ph": "M", "name": "thread_name", "args": {"name": line.display_name or line.name}} | same
                since = (start(space) - begin + line.timestamp_ns) / 1e3
                for event in line.events:
                    what = plane.event_metadata[event.metadata_id]
                    times = {"ts": since + event.offset_ps / 1e6, "dur": event.duration_ps / 1e6}
                    yield {"ph": "X", "name": what.display_name or what.name} | times | same
