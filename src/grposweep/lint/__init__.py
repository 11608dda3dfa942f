"""The linter: a recipe in, its problems, plan and verified fixes out; as text, as JSON, or written into the file.

``judge`` is the whole of it; ``files`` and ``lines`` feed it, ``answer`` and ``screen`` show what it found, ``repair``
writes fixes.
"""
