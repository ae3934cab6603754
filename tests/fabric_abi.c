/* Sizes and offsets of what programs and libibverbs share: of the header named on the command line. */
#include ABI
#include <stdio.h>
#define SIZE(t) printf("sizeof %s %zu\n", #t, sizeof(struct t));
#define AT(t, f) printf("%s.%s %zu\n", #t, #f, offsetof(struct t, f));
int main(void) {
  SIZE(ibv_device_attr) SIZE(ibv_port_attr) SIZE(ibv_device) SIZE(ibv_pd) SIZE(ibv_mr) SIZE(ibv_comp_channel) SIZE(ibv_cq)
  SIZE(ibv_cq_ex) SIZE(ibv_cq_init_attr_ex) SIZE(ibv_srq) SIZE(ibv_srq_init_attr) SIZE(ibv_qp) SIZE(ibv_ah) SIZE(ibv_ah_attr)
  SIZE(ibv_grh) SIZE(ibv_qp_init_attr) SIZE(ibv_qp_init_attr_ex) SIZE(ibv_qp_attr) SIZE(ibv_sge) SIZE(ibv_send_wr)
  SIZE(ibv_recv_wr) SIZE(ibv_wc) SIZE(ibv_async_event) SIZE(ibv_qp_ex) SIZE(ibv_context_ops) SIZE(ibv_context)
  SIZE(verbs_context) SIZE(ibv_gid_entry) SIZE(ibv_data_buf)
  AT(ibv_device_attr, max_qp) AT(ibv_device_attr, max_srq_sge) AT(ibv_device_attr, atomic_cap) AT(ibv_device_attr, phys_port_cnt)
  AT(ibv_device_attr_ex, comp_mask) AT(ibv_device_attr_ex, phys_port_cnt_ex)
  AT(ibv_port_attr, lid) AT(ibv_port_attr, link_layer) AT(ibv_port_attr, port_cap_flags2) AT(ibv_device, name) AT(ibv_device, ibdev_path)
  AT(ibv_mr, rkey) AT(ibv_cq, cqe) AT(ibv_cq, comp_events_completed) AT(ibv_cq_ex, wr_id) AT(ibv_cq_ex, start_poll)
  AT(ibv_cq_ex, read_opcode) AT(ibv_cq_ex, read_imm_data) AT(ibv_cq_ex, read_wc_flags) AT(ibv_cq_ex, read_completion_ts)
  AT(ibv_cq_ex, read_completion_wallclock_ns) AT(ibv_cq_init_attr_ex, comp_mask) AT(ibv_qp, qp_num) AT(ibv_qp, state)
  AT(ibv_qp, events_completed) AT(ibv_ah_attr, dlid) AT(ibv_ah_attr, port_num) AT(ibv_qp_init_attr_ex, pd)
  AT(ibv_qp_init_attr_ex, create_flags) AT(ibv_qp_init_attr_ex, send_ops_flags) AT(ibv_qp_attr, ah_attr) AT(ibv_qp_attr, timeout)
  AT(ibv_qp_attr, rate_limit) AT(ibv_send_wr, opcode) AT(ibv_send_wr, imm_data) AT(ibv_send_wr, wr.atomic.swap)
  AT(ibv_send_wr, wr.atomic.rkey) AT(ibv_send_wr, wr.rdma.rkey) AT(ibv_send_wr, wr.ud.remote_qkey) AT(ibv_wc, imm_data)
  AT(ibv_wc, wc_flags) AT(ibv_wc, dlid_path_bits) AT(ibv_async_event, event_type) AT(ibv_qp_ex, wr_flags)
  AT(ibv_qp_ex, wr_atomic_cmp_swp) AT(ibv_qp_ex, wr_rdma_read) AT(ibv_qp_ex, wr_send_imm) AT(ibv_qp_ex, wr_set_ud_addr)
  AT(ibv_qp_ex, wr_set_inline_data) AT(ibv_qp_ex, wr_set_sge_list) AT(ibv_qp_ex, wr_complete) AT(ibv_context_ops, poll_cq)
  AT(ibv_context_ops, req_notify_cq) AT(ibv_context_ops, post_srq_recv) AT(ibv_context_ops, post_send) AT(ibv_context_ops, post_recv)
  AT(ibv_context, async_fd) AT(ibv_context, abi_compat) AT(verbs_context, query_port) AT(verbs_context, create_cq_ex)
  AT(verbs_context, query_device_ex) AT(verbs_context, create_qp_ex) AT(verbs_context, get_srq_num) AT(verbs_context, sz)
  AT(verbs_context, context)
  printf("%d %d %d %d %d\n", IBV_WR_ATOMIC_FETCH_AND_ADD, IBV_WC_RECV_RDMA_WITH_IMM, IBV_WC_RNR_RETRY_EXC_ERR, IBV_EVENT_GID_CHANGE, IBV_QP_DEST_QPN);
  return 0;
}
