"""`python -m optcc` is the optcc command."""

from optcc.cli.main import main

main()
