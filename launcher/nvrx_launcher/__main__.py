"""`python -m nvrx_launcher`: the same as `nvrx-launch`."""

from __future__ import annotations

import sys

from nvrx_launcher.launch_cli import main

if __name__ == "__main__":
    sys.exit(main())
