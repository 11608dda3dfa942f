# Bash runs the options behind the comment as a command of its own.
python train_grpo.py --beta 0.1 \
  # --epsilon 0.2 \
  --num_generations 4
