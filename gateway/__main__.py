"""`python -m gateway --host 127.0.0.1 --port 8080`."""

from gateway.serve import main

if __name__ == "__main__":
    main()
