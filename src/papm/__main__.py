"""`python -m papm` is `papm`."""

from papm.cli.main import main

if __name__ == "__main__":
    main()
