"""`python -m nvrx_launcher.ctl`."""

import sys

from nvrx_launcher.ctl.main import main

if __name__ == "__main__":
    sys.exit(main())
