from verl.workers.rollout.replica import RolloutReplicaRegistry
from verl.trainer.ppo.core_algos import register_adv_est
RolloutReplicaRegistry.register("vllm_omni", load)
@register_adv_est("flow_grpo")
def flow(): ...
