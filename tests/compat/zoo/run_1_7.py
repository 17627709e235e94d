"""run.py of release 1.7 under csrun_wse."""

from tests.compat.zoo import run_1_6, wrappers_1_7

if __name__ == "__main__":
    run_1_6.main(wrappers_1_7)
