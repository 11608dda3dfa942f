class RayPPOTrainer:
    def _validate_config(self):
        config = self.config
        # assert config.data.train_batch_size >= config.actor_rollout_ref.actor.ppo_mini_batch_size
    def fit(self):
        batch = batch.repeat(repeat_times=self.config.env.rollout.n, interleave=True)
