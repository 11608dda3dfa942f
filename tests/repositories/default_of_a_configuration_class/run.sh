# `beta` of a class that the program imports from its repository is not that of TRL.
torchrun train_grpo.py --num_generations 8 --max_completion_length 64
