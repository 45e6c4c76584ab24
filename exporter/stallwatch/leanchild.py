"""How does a worker begin? With what it is to leave out, before anything is loaded; `child` is what it does then."""

import sys

from stallwatch.lightly import Lazily

if __name__ == "__main__":
    Lazily().begin()

    from stallwatch.child import main

    main(sys.argv[1:])
