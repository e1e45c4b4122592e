"""`python -m perdure.testing.endpoint SCRIPT`: print the address on a line and serve."""

import argparse
import signal
import sys
from pathlib import Path

from perdure.errors import ConfigError
from perdure.testing.endpoint.script import Script
from perdure.testing.endpoint.server import Endpoint, EndpointServer


def main() -> int:
    """Serve until SIGINT or SIGTERM."""
    parser = argparse.ArgumentParser("python -m perdure.testing.endpoint", description=__doc__)
    parser.add_argument("script", type=Path, help="a JSON list of turns")
    parser.add_argument("--port", type=int, default=0, help="0 for any free port")
    parser.add_argument("--log", type=Path, help="one JSON line per request")
    parser.add_argument("--key", help="refuse any other key")
    options = parser.parse_args()
    try:
        script = Script.read(options.script)
    except ConfigError as error:
        sys.stderr.write(f"{error}\n")
        return 2
    server = EndpointServer(Endpoint(script, log=options.log, key=options.key), options.port)
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    sys.stdout.write(f"{server.endpoint.url}\n")
    sys.stdout.flush()
    try:
        server.serve_forever()
    except KeyboardInterrupt:
        return 0
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
