import hydra

@hydra.main(config_path="config", config_name="ppo_trainer", version_base=None)
def main(config):
    assert config.actor_rollout_ref.rollout.n == 1, "In verl, n is env.rollout.n"
