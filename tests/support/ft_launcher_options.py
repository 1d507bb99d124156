"""What ft_launcher of nvidia-resiliency-ext takes, as its own parsers and its class of settings say it.

Read out of the wheels 0.4.1, 0.5.0, 0.6.0 and 0.7.0 (`get_args_parser()._actions`, the fields of
`FaultToleranceConfig`): names, whether a value follows, and whether `PET_<NAME>` gives it, too.
"""

from __future__ import annotations

from dataclasses import dataclass

EVER = ("0.4.1", "0.5.0", "0.6.0", "0.7.0")
SINCE_5, SINCE_6, SINCE_7 = EVER[1:], EVER[2:], EVER[3:]
IN_5, IN_6 = EVER[1:2], EVER[2:3]


@dataclass(frozen=True)
class Row:
    """One option of the command line: `spellings` with blanks between, `versions` that have it."""

    spellings: str
    dest: str
    versions: tuple[str, ...]
    flag: bool = False
    variable: bool = False


ROWS = (
    Row("--nnodes", "nnodes", EVER, variable=True),
    Row("--nproc-per-node --nproc_per_node", "nproc_per_node", EVER, variable=True),
    Row("--rdzv-backend --rdzv_backend", "rdzv_backend", EVER, variable=True),
    Row("--rdzv-endpoint --rdzv_endpoint", "rdzv_endpoint", EVER, variable=True),
    Row("--rdzv-id --rdzv_id", "rdzv_id", EVER, variable=True),
    Row("--rdzv-conf --rdzv_conf", "rdzv_conf", EVER, variable=True),
    Row("--standalone", "standalone", EVER, flag=True, variable=True),
    Row("--max-restarts --max_restarts", "max_restarts", EVER, variable=True),
    Row("--term-timeout --term_timeout", "term_timeout", EVER, variable=True),
    Row("--workers-stop-timeout --workers_stop_timeout", "workers_stop_timeout", EVER, variable=True),
    Row("--monitor-interval --monitor_interval", "monitor_interval", EVER, variable=True),
    Row("--start-method --start_method", "start_method", EVER, variable=True),
    Row("--role", "role", EVER, variable=True),
    Row("-m --module", "module", EVER, flag=True, variable=True),
    Row("--no-python --no_python", "no_python", EVER, flag=True, variable=True),
    Row("--run-path --run_path", "run_path", EVER, flag=True, variable=True),
    Row("--log-dir --log_dir", "log_dir", EVER, variable=True),
    Row("-r --redirects", "redirects", EVER, variable=True),
    Row("-t --tee", "tee", EVER, variable=True),
    Row("--local-ranks-filter --local_ranks_filter", "local_ranks_filter", EVER, variable=True),
    Row("--node-rank --node_rank", "node_rank", EVER, variable=True),
    Row("--master-addr --master_addr", "master_addr", EVER, variable=True),
    Row("--master-port --master_port", "master_port", EVER, variable=True),
    Row("--local-addr --local_addr", "local_addr", EVER, variable=True),
    Row("--logs-specs --logs_specs", "logs_specs", EVER),
    Row("--ft-cfg-path --ft-cfg_path --fault-tol-cfg-path", "ft_cfg_path", EVER, variable=True),
    Row(
        "--ft-workload-check-interval --ft-workload_check_interval --ft-param-workload_check_interval",
        "ft_workload_check_interval",
        EVER,
    ),
    Row(
        "--ft-initial-rank-heartbeat-timeout --ft-initial_rank_heartbeat_timeout "
        "--ft-param-initial_rank_heartbeat_timeout",
        "ft_initial_rank_heartbeat_timeout",
        EVER,
    ),
    Row(
        "--ft-rank-heartbeat-timeout --ft-rank_heartbeat_timeout --ft-param-rank_heartbeat_timeout",
        "ft_rank_heartbeat_timeout",
        EVER,
    ),
    Row(
        "--ft-node-health-check-interval --ft-node_health_check_interval --ft-param-node_health_check_interval",
        "ft_node_health_check_interval",
        EVER,
    ),
    Row("--ft-safety-factor --ft-safety_factor --ft-param-safety_factor", "ft_safety_factor", EVER),
    Row(
        "--ft-rank-termination-signal --ft-rank_termination_signal --ft-param-rank_termination_signal",
        "ft_rank_termination_signal",
        EVER,
    ),
    Row("--ft-log-level --ft-log_level --ft-param-log_level", "ft_log_level", EVER),
    Row(
        "--ft-rank-out-of-section-timeout --ft-rank_out_of_section_timeout --ft-param-rank_out_of_section_timeout",
        "ft_rank_out_of_section_timeout",
        EVER,
    ),
    Row(
        "--ft-rank-section-timeouts --ft-rank_section_timeouts --ft-param-rank_section_timeouts",
        "ft_rank_section_timeouts",
        EVER,
    ),
    Row(
        "--ft-restart-check-interval --ft-restart_check_interval --ft-param-restart_check_interval",
        "ft_restart_check_interval",
        EVER,
    ),
    Row(
        "--ft-restart-policy --ft-restart_policy --restart-policy --restart_policy", "ft_restart_policy", EVER
    ),
    Row(
        "--ft-enable-nic-monitor --ft-enable_nic_monitor --ft-param-enable-nic-monitor --ft_param_enable_nic_monitor",
        "ft_enable_nic_monitor",
        EVER,
    ),
    Row(
        "--ft-pci-topo-file --ft-pci_topo_file --ft-param-pci-topo-file --ft_param_pci_topo_file",
        "ft_pci_topo_file",
        EVER,
    ),
    Row(
        "--ft-link-down-path-template --ft-link_down_path_template "
        "--ft-param-link-down-path-template --ft_param_link_down_path_template",
        "ft_link_down_path_template",
        EVER,
    ),
    Row(
        "--ignore-missing-fault-tol-cfg --ft-ignore-missing-cfg",
        "ft_ignore_missing_cfg",
        ("0.4.1", "0.7.0"),
        flag=True,
    ),
    Row("--ft-skip-section-response --ft-skip_section_response", "ft_skip_section_response", SINCE_5),
    Row("--ft-use-infra-group-rank --ft-use_infra_group_rank", "ft_use_infra_group_rank", IN_5),
    Row("--ft-rdzv-impl --ft-rdzv_impl", "ft_rdzv_impl", SINCE_5),
    Row("--ft-segment --ft_segment", "ft_segment", SINCE_6),
    Row(
        "--ft-per-cycle-applog-prefix --ft_per_cycle_applog_prefix",
        "ft_per_cycle_applog_prefix",
        SINCE_6,
        variable=True,
    ),
    Row("--ft-nvrx-logfile --ft_nvrx_logfile", "ft_nvrx_logfile", SINCE_6, variable=True),
    Row("--ft-enable-log-server --ft_enable_log_server", "ft_enable_log_server", SINCE_6, variable=True),
    Row("--ft-log-server-port --ft_log_server_port", "ft_log_server_port", SINCE_6, variable=True),
    Row(
        "--ft-log-aggregator-count --ft_log_aggregator_count",
        "ft_log_aggregator_count",
        SINCE_6,
        variable=True,
    ),
    Row(
        "--ft-log-leaf-max-queue-chunks --ft_log_leaf_max_queue_chunks",
        "ft_log_leaf_max_queue_chunks",
        SINCE_6,
        variable=True,
    ),
    Row(
        "--ft-log-server-log-prefix --ft_log_server_log_prefix",
        "ft_log_server_log_prefix",
        SINCE_6,
        variable=True,
    ),
    Row(
        "--ft-log-server-graceful-shutdown-timeout --ft_log_server_graceful_shutdown_timeout",
        "ft_log_server_graceful_shutdown_timeout",
        SINCE_6,
        variable=True,
    ),
    Row(
        "--ft-node-health-check-endpoint --ft-node_health_check_endpoint",
        "ft_node_health_check_endpoint",
        SINCE_6,
    ),
    Row("--ft-enable-nic-healthcheck --ft-enable_nic_healthcheck", "ft_enable_nic_healthcheck", SINCE_6),
    Row(
        "--ft-link-state-path-template --ft-link_state_path_template", "ft_link_state_path_template", SINCE_6
    ),
    Row(
        "--ft-enable-dist-storage-healthcheck --ft_enable_dist_storage_healthcheck",
        "ft_enable_dist_storage_healthcheck",
        SINCE_6,
    ),
    Row(
        "--ft-storage-health-check-path --ft_storage_health_check_path",
        "ft_storage_healthcheck_path",
        SINCE_6,
    ),
    Row("--ft-numa-bind-strict --ft-numa_bind_strict", "ft_numa_bind_strict", SINCE_6),
    Row(
        "--ft-gpu-memory-reclaim-timeout --ft-gpu_memory_reclaim_timeout",
        "ft_gpu_memory_reclaim_timeout",
        SINCE_6,
    ),
    Row("--ft-gpu-memory-tolerance-mb --ft-gpu_memory_tolerance_mb", "ft_gpu_memory_tolerance_mb", SINCE_6),
    Row(
        "--ft-gpu-memory-poll-interval --ft-gpu_memory_poll_interval", "ft_gpu_memory_poll_interval", SINCE_6
    ),
    Row(
        "--ft-check-remaining-processes --ft-check_remaining_processes",
        "ft_check_remaining_processes",
        SINCE_6,
    ),
    Row("--ft-install-exception-hook --ft-install_exception_hook", "ft_install_exception_hook", SINCE_6),
    Row("--ft-attribution-endpoint --ft_attribution_endpoint", "ft_attribution_endpoint", SINCE_6),
    Row(
        "--ft-attribution-startup-timeout --ft_attribution_startup_timeout",
        "ft_attribution_startup_timeout",
        SINCE_6,
    ),
    Row(
        "--ft-attribution-llm-api-key-file --ft_attribution_llm_api_key_file",
        "ft_attribution_llm_api_key_file",
        SINCE_6,
    ),
    Row(
        "--ft-attribution-llm-base-url --ft_attribution_llm_base_url", "ft_attribution_llm_base_url", SINCE_6
    ),
    Row("--ft-attribution-llm-model --ft_attribution_llm_model", "ft_attribution_llm_model", SINCE_6),
    Row(
        "--ft-attribution-analysis-backend --ft_attribution_analysis_backend",
        "ft_attribution_analysis_backend",
        SINCE_6,
    ),
    Row(
        "--ft-attribution-compute-timeout --ft_attribution_compute_timeout",
        "ft_attribution_compute_timeout",
        IN_6,
    ),
    Row("--ft-attribution-log-level --ft_attribution_log_level", "ft_attribution_log_level", SINCE_6),
    Row("--ft-cycle-info-dir --ft_cycle_info_dir", "ft_cycle_info_dir", SINCE_6),
    Row("--ft-max-no-progress-cycles --ft-max_no_progress_cycles", "ft_max_no_progress_cycles", SINCE_6),
    Row("--ft-min-progress-iterations --ft-min_progress_iterations", "ft_min_progress_iterations", SINCE_6),
    Row(
        "--ft-checkpoint-iteration-file --ft-checkpoint_iteration_file",
        "ft_checkpoint_iteration_file",
        SINCE_6,
    ),
    Row(
        "--ft-segment-health-check-dir --ft_segment_health_check_dir", "ft_segment_health_check_dir", SINCE_7
    ),
    Row("--ft-attribution-stop-action --ft_attribution_stop_action", "ft_attribution_stop_action", SINCE_7),
    Row("--ft-attribution-export-url --ft_attribution_export_url", "ft_attribution_export_url", SINCE_7),
    Row("--ft-no-restart-exit-code --ft_no_restart_exit_code", "ft_no_restart_exit_code", SINCE_7),
)

DEFAULTS = {
    "0.4.1": """
enable_nic_monitor: true
initial_rank_heartbeat_timeout: 3600.0
link_down_path_template: null
log_level: 20
node_health_check_interval: 5.0
pci_topo_file: null
rank_heartbeat_timeout: 2700.0
rank_out_of_section_timeout: null
rank_section_timeouts: {}
rank_termination_signal: SIGKILL
restart_check_interval: 60.0
safety_factor: 5.0
workload_check_interval: 5.0
""",
    "0.5.0": """
enable_nic_monitor: false
initial_rank_heartbeat_timeout: 3600.0
link_down_path_template: null
log_level: 20
node_health_check_interval: 5.0
pci_topo_file: null
rank_heartbeat_timeout: 2700.0
rank_out_of_section_timeout: null
rank_section_timeouts: {}
rank_termination_signal: SIGKILL
restart_check_interval: 60.0
safety_factor: 5.0
skip_section_response: true
use_infra_group_rank: true
workload_check_interval: 5.0
""",
    "0.6.0": """
attribution_endpoint: null
check_remaining_processes: false
checkpoint_iteration_file: null
cycle_info_dir: null
enable_dist_storage_healthcheck: false
enable_nic_healthcheck: true
enable_nic_monitor: false
gpu_memory_poll_interval: 2.0
gpu_memory_reclaim_timeout: 50.0
gpu_memory_tolerance_mb: 512.0
initial_rank_heartbeat_timeout: null
install_exception_hook: false
link_down_path_template: null
link_state_path_template: null
log_level: 20
max_no_progress_cycles: 2
min_progress_iterations: 1
node_health_check_interval: 5.0
num_warmup_iterations: 5
numa_bind_strict: true
pci_topo_file: null
rank_heartbeat_timeout: null
rank_out_of_section_timeout: null
rank_section_timeouts: {}
rank_termination_signal: SIGKILL
restart_check_interval: 60.0
safety_factor: 5.0
segment: null
skip_section_response: true
storage_healthcheck_path: null
workload_check_interval: 5.0
""",
    "0.7.0": """
attribution_endpoint: null
attribution_export_url: null
attribution_stop_action: null
check_remaining_processes: false
checkpoint_iteration_file: null
cycle_info_dir: null
enable_dist_storage_healthcheck: false
enable_nic_healthcheck: true
enable_nic_monitor: false
gpu_memory_poll_interval: 2.0
gpu_memory_reclaim_timeout: 50.0
gpu_memory_tolerance_mb: 512.0
initial_rank_heartbeat_timeout: null
install_exception_hook: false
link_down_path_template: null
link_state_path_template: null
log_level: 20
max_no_progress_cycles: 3
min_progress_iterations: 1
node_health_check_interval: 5.0
num_warmup_iterations: 5
numa_bind_strict: true
pci_topo_file: null
rank_heartbeat_timeout: null
rank_out_of_section_timeout: null
rank_section_timeouts: {}
rank_termination_signal: SIGKILL
restart_check_interval: 60.0
safety_factor: 5.0
segment: null
segment_health_check_dir: null
skip_section_response: true
storage_healthcheck_path: null
workload_check_interval: 5.0
""",
}
"""Every setting of a file with its default, as `FaultToleranceConfig().to_yaml_file` writes it."""
