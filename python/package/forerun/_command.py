"""The ``forerun`` command."""

import signal
import sys
from typing import NoReturn

from ._forerun import run_command


def main() -> NoReturn:
    """Run the ``forerun`` command with the arguments of this process."""
    # The command handles Ctrl-C itself. Python would only note it until the command has ended.
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    sys.exit(run_command(["forerun", *sys.argv[1:]]))
