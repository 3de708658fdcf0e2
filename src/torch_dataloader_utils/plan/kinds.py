"""The kinds of plans of one epoch. They have the same interface, and differ in what they deal to ranks and workers.

ExactPlan      rows, levelled
LanePlan       micro-batches of lanes (num_lanes)
TokenPlan      batches under a token budget (max_tokens_per_batch)
InexactPlan    whole row groups, whose rows are not counted
"""

from torch_dataloader_utils.plan.exact_plan import ExactPlan
from torch_dataloader_utils.plan.inexact_plan import InexactPlan
from torch_dataloader_utils.plan.lane_plan import LanePlan
from torch_dataloader_utils.plan.token_plan import TokenPlan

PlanOfEpoch = ExactPlan | LanePlan | TokenPlan | InexactPlan
