"""How does a worker begin? With what it is to leave out, before anything is loaded; `child` is what it does then."""

import sys

from stallwatch.lightly import SELDOM, Lazily

if __name__ == "__main__":
    with Lazily(SELDOM):
        from stallwatch.child import main

        main(sys.argv[1:])
