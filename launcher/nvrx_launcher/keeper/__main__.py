"""Entry point: `python -I -S -X utf8 <this folder>/__main__.py --control FD --generation N`.

Under `-I -S` neither this folder nor site-packages is on `sys.path`. The folder above is appended behind the
standard library, so that this folder is the package `keeper` and none of its neighbours can shadow a
module of the standard library.
"""

import sys

if __name__ == "__main__":
    sys.path.append(__file__.rsplit("/", 2)[0])
    service = __import__("keeper.service", fromlist=["main"])
    sys.exit(service.main(sys.argv[1:]))
