"""`python -m optcc` is the optcc command."""

from optcc.cli import main

main()
