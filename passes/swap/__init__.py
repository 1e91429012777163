"""Swap: which values leave for another memory tier, when they go, and when they come back.

mark_offload       what belongs to a swapped layer, module or operator       joint graph
keep_borders       one value between a swapped layer and the next            joint graph
choose_offload     which saved values move, and why the others stay          forward and backward
hoist              compute early what leaves                                 forward
plan_journeys      when each value leaves and returns                        forward and backward
  course           what runs in the backward, how long, and what is alive
  spread           before which kernel each reload is issued
insert_offload     memopt::offload after the last use                        forward
schedule_prefetch  memopt::prefetch and memopt::wait                         backward
verify_swap        proves it                                                 forward and backward
"""
