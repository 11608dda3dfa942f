# The line is in another file.
trl grpo --config r.yaml --num_processes 2
