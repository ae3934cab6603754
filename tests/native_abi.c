/* Sizes and offsets of what the native engine and libibverbs share: of the header named on the command line. */
#include ABI
#include <stdio.h>
#define SIZE(t) printf("sizeof %s %zu\n", #t, sizeof(struct t));
#define AT(t, f) printf("%s.%s %zu\n", #t, #f, offsetof(struct t, f));
#define NUMBER(n) printf("%s %d\n", #n, (int)n);
int main(void) {
  SIZE(ibv_mr) SIZE(ibv_comp_channel) SIZE(ibv_ah_attr) SIZE(ibv_qp_cap) SIZE(ibv_qp_init_attr) SIZE(ibv_qp_attr) SIZE(ibv_sge)
  SIZE(ibv_send_wr) SIZE(ibv_recv_wr) SIZE(ibv_wc) SIZE(ibv_async_event) SIZE(ibv_context_ops) SIZE(ibv_global_route)
  AT(ibv_device_attr, max_qp_wr) AT(ibv_device_attr, max_cqe) AT(ibv_port_attr, state) AT(ibv_port_attr, active_mtu)
  AT(ibv_port_attr, lid) AT(ibv_port_attr, active_width) AT(ibv_port_attr, active_speed)
  AT(ibv_port_attr, link_layer) AT(ibv_mr, lkey) AT(ibv_comp_channel, fd) AT(ibv_qp, qp_num) AT(ibv_global_route, sgid_index)
  AT(ibv_global_route, hop_limit) AT(ibv_ah_attr, dlid) AT(ibv_ah_attr, is_global) AT(ibv_ah_attr, port_num)
  AT(ibv_qp_init_attr, cap) AT(ibv_qp_init_attr, qp_type) AT(ibv_qp_attr, path_mtu) AT(ibv_qp_attr, qkey)
  AT(ibv_qp_attr, rq_psn) AT(ibv_qp_attr, sq_psn) AT(ibv_qp_attr, dest_qp_num) AT(ibv_qp_attr, ah_attr)
  AT(ibv_qp_attr, pkey_index) AT(ibv_qp_attr, max_rd_atomic) AT(ibv_qp_attr, max_dest_rd_atomic) AT(ibv_qp_attr, min_rnr_timer)
  AT(ibv_qp_attr, port_num) AT(ibv_qp_attr, timeout) AT(ibv_qp_attr, retry_cnt) AT(ibv_qp_attr, rnr_retry)
  AT(ibv_send_wr, sg_list) AT(ibv_send_wr, opcode) AT(ibv_send_wr, send_flags) AT(ibv_send_wr, imm_data)
  AT(ibv_send_wr, wr.ud.ah) AT(ibv_send_wr, wr.ud.remote_qpn) AT(ibv_send_wr, wr.ud.remote_qkey) AT(ibv_recv_wr, num_sge)
  AT(ibv_wc, status) AT(ibv_wc, vendor_err) AT(ibv_wc, byte_len) AT(ibv_wc, imm_data) AT(ibv_wc, src_qp)
  AT(ibv_async_event, event_type) AT(ibv_context_ops, poll_cq) AT(ibv_context_ops, req_notify_cq)
  AT(ibv_context_ops, post_send) AT(ibv_context_ops, post_recv) AT(ibv_context, ops) AT(ibv_context, async_fd)
  NUMBER(IBV_PORT_ACTIVE) NUMBER(IBV_QPT_RC) NUMBER(IBV_QPT_UD) NUMBER(IBV_QPS_RESET) NUMBER(IBV_QPS_RTS) NUMBER(IBV_QPS_ERR)
  NUMBER(IBV_ACCESS_LOCAL_WRITE) NUMBER(IBV_WC_WITH_IMM) NUMBER(IBV_WR_SEND_WITH_IMM) NUMBER(IBV_SEND_SIGNALED)
  NUMBER(IBV_WC_LOC_PROT_ERR) NUMBER(IBV_WC_RNR_RETRY_EXC_ERR) NUMBER(IBV_EVENT_QP_ACCESS_ERR) NUMBER(IBV_EVENT_DEVICE_FATAL)
  NUMBER(IBV_EVENT_PORT_ERR) NUMBER(IBV_QP_STATE) NUMBER(IBV_QP_QKEY) NUMBER(IBV_QP_AV) NUMBER(IBV_QP_PATH_MTU)
  NUMBER(IBV_QP_TIMEOUT) NUMBER(IBV_QP_RETRY_CNT) NUMBER(IBV_QP_RNR_RETRY) NUMBER(IBV_QP_RQ_PSN)
  NUMBER(IBV_QP_MAX_QP_RD_ATOMIC) NUMBER(IBV_QP_MIN_RNR_TIMER) NUMBER(IBV_QP_SQ_PSN) NUMBER(IBV_QP_MAX_DEST_RD_ATOMIC)
  NUMBER(IBV_QP_DEST_QPN) NUMBER(IBV_QP_PORT) NUMBER(IBV_QP_PKEY_INDEX) NUMBER(IBV_QP_ACCESS_FLAGS)
  return 0;
}
