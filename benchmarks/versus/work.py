"""One process of a measurement: a job as JSON on the command line, what was measured as JSON on standard output."""

from __future__ import annotations

import json
import sys

from rows import Job


def main() -> None:
    job = Job.of(json.loads(sys.argv[1]))
    if job.engine == "plait":
        from ours import measure
    else:
        from peer import measure
    print(json.dumps(measure(job)))


if __name__ == "__main__":
    main()
