"""`python -IS client.py SOCKET [-W ACTION] SCRIPT|-c CODE|-m MODULE [ARGUMENT ...]`: Python, with TensorFlow loaded.

The server of server.py forks a child that runs the script. This process stands for the child: it passes its standard
streams, environment and working directory to it and signals on to it, and ends as the child ends.
"""

import json
import os
import signal
import socket
import sys

PASSED_ON = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)


def main() -> None:
    """Run the script in a child of the server; end as it ends."""
    connection = socket.socket(socket.AF_UNIX)
    connection.connect(sys.argv[1])
    blocked = signal.pthread_sigmask(signal.SIG_BLOCK, PASSED_ON)
    ignores_interrupt = signal.getsignal(signal.SIGINT) == signal.SIG_IGN
    request = {
        "words": sys.argv[2:],
        "environment": dict(os.environ),
        "folder": os.getcwd(),
        "ignores_interrupt": ignores_interrupt,
    }
    message = json.dumps(request).encode()
    socket.send_fds(connection, [len(message).to_bytes(8, "big")], [0, 1, 2])
    connection.sendall(message)
    answers = connection.makefile("rb")
    child = int(answers.readline())
    for number in PASSED_ON:
        signal.signal(number, lambda number, _frame: os.kill(child, number))
    signal.pthread_sigmask(signal.SIG_SETMASK, blocked)
    code = int(answers.readline())
    if code < 0:
        signal.signal(-code, signal.SIG_DFL) if -code not in (signal.SIGKILL, signal.SIGSTOP) else None
        os.kill(os.getpid(), -code)
    os._exit(code)


main()
