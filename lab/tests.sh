#!/bin/sh
# Inside the guest: the tests over queue pairs, chunks by Python; then those of compiled code, which takes a minute to compile.
# Arguments go to pytest, both times. Exit status: pytest's, the first that is not 0; 5, no such tests, only if both have none.
export NUMBA_CACHE_DIR=/results   # compiled code is kept on the host, for the next time
given() { python3 -m pytest -c lab/pytest.ini --rootdir=. --confcutdir=tests/verbs "$@"; }
OPTCC_PATH=python given --junitxml=/results/junit.xml --ignore=tests/verbs/test_compiled.py tests/verbs "$@"
python=$?
if [ ! -d /packages/numba ]; then
  echo "lab: without numba in the project's environment the tests of compiled code cannot run (make setup)"
  exit $python
fi
PYTHONPATH=/optcc:/packages OPTCC_PATH=compiled given --junitxml=/results/junit-compiled.xml tests/verbs/test_compiled.py "$@"
compiled=$?
[ $python -eq 5 ] && exit $compiled
[ $python -eq 0 ] && [ $compiled -ne 5 ] && exit $compiled
exit $python
