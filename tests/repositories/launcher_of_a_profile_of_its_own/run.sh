# The profile resembles a configuration of verl, and has sections that verl does not have.
python launch.py --config profile.yaml
