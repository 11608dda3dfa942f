"""What dies, and when: a sweep's controller at every call to the outside, an attempt's ranks and
files.
"""
