"""The child process: runs the cases it is told to and writes one line for each.

Lines on standard input are ranges, "first last step".  On standard output there is "?seed" before a case, "=" and a
JSON object after it, and "done" after a range.
"""

from __future__ import annotations

import faulthandler
import json
import os
import sys
import tempfile
import traceback
from pathlib import Path
from typing import IO, Any

from tilewright.errors import TilewrightError
from tools.fuzz import sanitized
from tools.fuzz.target import Failed, Target, load

TEXT = 2000  # characters of a failure that are kept


def outcome(target: Target, seed: int) -> dict[str, Any]:
    """What came of one case, as the parent records it."""
    try:
        return {"label": target.run(seed)}
    except Failed as failure:
        return {"failed": failure.kind, "signature": failure.signature, "text": failure.text[:TEXT]}
    except TilewrightError as error:
        return {"label": f"refused: {type(error).__name__}"}
    except Exception as error:
        text = "".join(traceback.format_exception(error))
        return {"failed": "uncaught", "signature": signature(error), "text": text[-TEXT:]}


def signature(error: BaseException) -> str:
    """An error's class and the innermost of our own lines it passed, which group the errors of one cause."""
    ours = [frame for frame in traceback.extract_tb(error.__traceback__) if "/tilewright/" in frame.filename]
    place = f"{ours[-1].filename.rpartition('/tilewright/')[2]}:{ours[-1].name}" if ours else "outside tilewright"
    return f"{type(error).__name__} at {place}"


def serve(name: str, channel: IO[str]) -> None:
    """Run ranges of cases until standard input ends."""
    target = load(name)
    with tempfile.TemporaryDirectory(prefix=f"fuzz-{name}-") as folder:
        os.chdir(folder)
        if sanitized.is_on():
            sanitized.install(Path(folder))
        target.prepare(Path(folder))
        channel.write("ready\n")
        channel.flush()
        for line in sys.stdin:
            first, last, step = map(int, line.split())
            for seed in range(first, last, step):
                channel.write(f"?{seed}\n")
                channel.flush()
                faulthandler.dump_traceback_later(0.8 * target.seconds)
                result = outcome(target, seed)
                faulthandler.cancel_dump_traceback_later()
                channel.write(f"={json.dumps(result)}\n")
            channel.write("done\n")
            channel.flush()


def main() -> None:
    # What cases print must not reach the parent: it goes to standard error.
    channel = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    faulthandler.enable()
    serve(sys.argv[1], channel)


if __name__ == "__main__":
    main()
