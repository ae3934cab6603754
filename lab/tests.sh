#!/bin/sh
# Inside the guest: the tests over queue pairs. Arguments go to pytest; exit status: pytest's.
exec python3 -m pytest -c lab/pytest.ini --rootdir=. --confcutdir=tests/verbs --junitxml=/results/junit.xml tests/verbs "$@"
