"""What Toril says to the server and how it reads the answers, without a socket.

Nothing here does I/O: commands and plans are values, and time, dice and ids are arguments.
"""
