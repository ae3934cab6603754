/* The binary interface of libibverbs.so.1, as far as the played fabric fills or reads it: 64-bit Linux.

   Declared here so that building needs a C compiler alone, and no package of rdma-core's. It is an interface that cannot
   change any more: fields are only ever added at ends. tests/test_fabric_abi.py compares every size and offset with the
   distribution's infiniband/verbs.h. What is not played has the type Unplayed. */
#ifndef VERBS_ABI_H
#define VERBS_ABI_H

#include <linux/types.h>
#include <pthread.h>
#include <stddef.h>
#include <stdint.h>

typedef void Unplayed(void);

enum { IBV_NODE_CA = 1, IBV_TRANSPORT_IB = 0 };
enum { IBV_LINK_LAYER_INFINIBAND = 1, IBV_LINK_LAYER_ETHERNET = 2 };
enum { IBV_PORT_DOWN = 1, IBV_PORT_ACTIVE = 4, IBV_PORT_PHYS_DISABLED = 3, IBV_PORT_PHYS_LINK_UP = 5 };
enum { IBV_MTU_4096 = 5, IBV_ATOMIC_NONE = 0, IBV_ATOMIC_GLOB = 2 };
enum { IBV_GID_TYPE_IB = 0, IBV_GID_TYPE_ROCE_V2 = 2 };
enum { IBV_DEVICE_CURR_QP_STATE_MOD = 1 << 6, IBV_DEVICE_PORT_ACTIVE_EVENT = 1 << 10, IBV_DEVICE_RC_RNR_NAK_GEN = 1 << 12 };
enum { IBV_PORT_IP_BASED_GIDS = 1 << 26 };
enum ibv_qp_type { IBV_QPT_RC = 2, IBV_QPT_UC, IBV_QPT_UD };
enum ibv_qp_state { IBV_QPS_RESET, IBV_QPS_INIT, IBV_QPS_RTR, IBV_QPS_RTS, IBV_QPS_SQD, IBV_QPS_SQE, IBV_QPS_ERR };
enum { IBV_MIG_MIGRATED = 0 };
enum {
  IBV_ACCESS_LOCAL_WRITE = 1, IBV_ACCESS_REMOTE_WRITE = 2, IBV_ACCESS_REMOTE_READ = 4, IBV_ACCESS_REMOTE_ATOMIC = 8,
  IBV_ACCESS_MW_BIND = 16, IBV_ACCESS_ZERO_BASED = 32, IBV_ACCESS_ON_DEMAND = 64
};
enum {
  IBV_WR_RDMA_WRITE, IBV_WR_RDMA_WRITE_WITH_IMM, IBV_WR_SEND, IBV_WR_SEND_WITH_IMM, IBV_WR_RDMA_READ,
  IBV_WR_ATOMIC_CMP_AND_SWP, IBV_WR_ATOMIC_FETCH_AND_ADD, PLAYED_OPCODES
};
enum { IBV_SEND_FENCE = 1, IBV_SEND_SIGNALED = 2, IBV_SEND_SOLICITED = 4, IBV_SEND_INLINE = 8 };
enum { IBV_QP_INIT_ATTR_PD = 1, IBV_QP_INIT_ATTR_CREATE_FLAGS = 4, IBV_QP_INIT_ATTR_SEND_OPS_FLAGS = 64 };
enum { IBV_WC_RECV = 128, IBV_WC_RECV_RDMA_WITH_IMM = 129, IBV_WC_SEND = 0, IBV_WC_RDMA_WRITE, IBV_WC_RDMA_READ, IBV_WC_COMP_SWAP, IBV_WC_FETCH_ADD };
enum { IBV_WC_GRH = 1, IBV_WC_WITH_IMM = 2 };
enum ibv_wc_status {
  IBV_WC_SUCCESS, IBV_WC_LOC_LEN_ERR, IBV_WC_LOC_QP_OP_ERR, IBV_WC_LOC_PROT_ERR = 4, IBV_WC_WR_FLUSH_ERR,
  IBV_WC_REM_INV_REQ_ERR = 9, IBV_WC_REM_ACCESS_ERR, IBV_WC_REM_OP_ERR, IBV_WC_RETRY_EXC_ERR, IBV_WC_RNR_RETRY_EXC_ERR
};
enum ibv_event_type {
  IBV_EVENT_CQ_ERR, IBV_EVENT_QP_FATAL, IBV_EVENT_QP_REQ_ERR, IBV_EVENT_QP_ACCESS_ERR, IBV_EVENT_COMM_EST,
  IBV_EVENT_SQ_DRAINED, IBV_EVENT_DEVICE_FATAL = 8, IBV_EVENT_PORT_ACTIVE, IBV_EVENT_PORT_ERR,
  IBV_EVENT_SRQ_LIMIT_REACHED = 15, IBV_EVENT_QP_LAST_WQE_REACHED, IBV_EVENT_GID_CHANGE = 18
};
enum {
  IBV_QP_STATE = 1, IBV_QP_CUR_STATE = 2, IBV_QP_EN_SQD_ASYNC_NOTIFY = 4, IBV_QP_ACCESS_FLAGS = 8,
  IBV_QP_PKEY_INDEX = 16, IBV_QP_PORT = 32, IBV_QP_QKEY = 64, IBV_QP_AV = 128, IBV_QP_PATH_MTU = 256,
  IBV_QP_TIMEOUT = 512, IBV_QP_RETRY_CNT = 1024, IBV_QP_RNR_RETRY = 2048, IBV_QP_RQ_PSN = 4096,
  IBV_QP_MAX_QP_RD_ATOMIC = 8192, IBV_QP_MIN_RNR_TIMER = 1 << 15, IBV_QP_SQ_PSN = 1 << 16,
  IBV_QP_MAX_DEST_RD_ATOMIC = 1 << 17, IBV_QP_DEST_QPN = 1 << 20
};
enum { IBV_SRQ_MAX_WR = 1, IBV_SRQ_LIMIT = 2 };
enum { IBV_REREG_MR_CHANGE_TRANSLATION = 1, IBV_REREG_MR_CHANGE_PD = 2, IBV_REREG_MR_CHANGE_ACCESS = 4 };
enum { IBV_REREG_MR_ERR_INPUT = -1 };

union ibv_gid { uint8_t raw[16]; struct { __be64 subnet_prefix, interface_id; } global; };
struct ibv_gid_entry { union ibv_gid gid; uint32_t gid_index, port_num, gid_type, ndev_ifindex; };

struct ibv_device_attr {
  char fw_ver[64];
  __be64 node_guid, sys_image_guid;
  uint64_t max_mr_size, page_size_cap;
  uint32_t vendor_id, vendor_part_id, hw_ver;
  int max_qp, max_qp_wr;
  unsigned device_cap_flags;
  int max_sge, max_sge_rd, max_cq, max_cqe, max_mr, max_pd, max_qp_rd_atom, max_ee_rd_atom, max_res_rd_atom,
      max_qp_init_rd_atom, max_ee_init_rd_atom, atomic_cap, max_ee, max_rdd, max_mw, max_raw_ipv6_qp, max_raw_ethy_qp,
      max_mcast_grp, max_mcast_qp_attach, max_total_mcast_qp_attach, max_ah, max_fmr, max_map_per_fmr, max_srq,
      max_srq_wr, max_srq_sge;
  uint16_t max_pkeys;
  uint8_t local_ca_ack_delay, phys_port_cnt;
};
struct ibv_device_attr_ex { struct ibv_device_attr orig_attr; uint32_t comp_mask, unplayed[40], phys_port_cnt_ex; };

struct ibv_port_attr {
  int state, max_mtu, active_mtu, gid_tbl_len;
  uint32_t port_cap_flags, max_msg_sz, bad_pkey_cntr, qkey_viol_cntr;
  uint16_t pkey_tbl_len, lid, sm_lid;
  uint8_t lmc, max_vl_num, sm_sl, subnet_timeout, init_type_reply, active_width, active_speed, phys_state, link_layer, flags;
  uint16_t port_cap_flags2;
};

struct ibv_context;
struct ibv_device {
  void *_ops[2];
  int node_type, transport_type;
  char name[64], dev_name[64], dev_path[256], ibdev_path[256];
};
struct ibv_pd { struct ibv_context *context; uint32_t handle; };
struct ibv_mr { struct ibv_context *context; struct ibv_pd *pd; void *addr; size_t length; uint32_t handle, lkey, rkey; };
struct ibv_comp_channel { struct ibv_context *context; int fd, refcnt; };
struct ibv_cq {
  struct ibv_context *context;
  struct ibv_comp_channel *channel;
  void *cq_context;
  uint32_t handle;
  int cqe;
  pthread_mutex_t mutex;
  pthread_cond_t cond;
  uint32_t comp_events_completed, async_events_completed;
};
struct ibv_wc_tm_info;
struct ibv_poll_cq_attr { uint32_t comp_mask; };
struct ibv_cq_ex {
  struct ibv_context *context;
  struct ibv_comp_channel *channel;
  void *cq_context;
  uint32_t handle;
  int cqe;
  pthread_mutex_t mutex;
  pthread_cond_t cond;
  uint32_t comp_events_completed, async_events_completed, comp_mask;
  enum ibv_wc_status status;
  uint64_t wr_id;
  int (*start_poll)(struct ibv_cq_ex *, struct ibv_poll_cq_attr *);
  int (*next_poll)(struct ibv_cq_ex *);
  void (*end_poll)(struct ibv_cq_ex *);
  int (*read_opcode)(struct ibv_cq_ex *);
  uint32_t (*read_vendor_err)(struct ibv_cq_ex *), (*read_byte_len)(struct ibv_cq_ex *);
  __be32 (*read_imm_data)(struct ibv_cq_ex *);
  uint32_t (*read_qp_num)(struct ibv_cq_ex *), (*read_src_qp)(struct ibv_cq_ex *);
  unsigned (*read_wc_flags)(struct ibv_cq_ex *);
  uint32_t (*read_slid)(struct ibv_cq_ex *);
  uint8_t (*read_sl)(struct ibv_cq_ex *), (*read_dlid_path_bits)(struct ibv_cq_ex *);
  uint64_t (*read_completion_ts)(struct ibv_cq_ex *);
  Unplayed *read_cvlan, *read_flow_tag, *read_tm_info;
  uint64_t (*read_completion_wallclock_ns)(struct ibv_cq_ex *);
};
struct ibv_cq_init_attr_ex {
  uint32_t cqe;
  void *cq_context;
  struct ibv_comp_channel *channel;
  uint32_t comp_vector;
  uint64_t wc_flags;
  uint32_t comp_mask, flags;
  struct ibv_pd *parent_domain;
};
struct ibv_srq {
  struct ibv_context *context;
  void *srq_context;
  struct ibv_pd *pd;
  uint32_t handle;
  pthread_mutex_t mutex;
  pthread_cond_t cond;
  uint32_t events_completed;
};
struct ibv_srq_attr { uint32_t max_wr, max_sge, srq_limit; };
struct ibv_srq_init_attr { void *srq_context; struct ibv_srq_attr attr; };
struct ibv_qp {
  struct ibv_context *context;
  void *qp_context;
  struct ibv_pd *pd;
  struct ibv_cq *send_cq, *recv_cq;
  struct ibv_srq *srq;
  uint32_t handle, qp_num;
  enum ibv_qp_state state;
  enum ibv_qp_type qp_type;
  pthread_mutex_t mutex;
  pthread_cond_t cond;
  uint32_t events_completed;
};
struct ibv_ah { struct ibv_context *context; struct ibv_pd *pd; uint32_t handle; };
struct ibv_global_route { union ibv_gid dgid; uint32_t flow_label; uint8_t sgid_index, hop_limit, traffic_class; };
struct ibv_ah_attr { struct ibv_global_route grh; uint16_t dlid; uint8_t sl, src_path_bits, static_rate, is_global, port_num; };
struct ibv_grh { __be32 version_tclass_flow; __be16 paylen; uint8_t next_hdr, hop_limit; union ibv_gid sgid, dgid; };
struct ibv_qp_cap { uint32_t max_send_wr, max_recv_wr, max_send_sge, max_recv_sge, max_inline_data; };
struct ibv_qp_init_attr {
  void *qp_context;
  struct ibv_cq *send_cq, *recv_cq;
  struct ibv_srq *srq;
  struct ibv_qp_cap cap;
  enum ibv_qp_type qp_type;
  int sq_sig_all;
};
struct ibv_qp_init_attr_ex {  /* begins as ibv_qp_init_attr */
  void *qp_context;
  struct ibv_cq *send_cq, *recv_cq;
  struct ibv_srq *srq;
  struct ibv_qp_cap cap;
  enum ibv_qp_type qp_type;
  int sq_sig_all;
  uint32_t comp_mask;
  struct ibv_pd *pd;
  void *xrcd;
  uint32_t create_flags;
  uint16_t max_tso_header;
  void *rwq_ind_tbl;
  struct { uint8_t rx_hash_function, rx_hash_key_len; uint8_t *rx_hash_key; uint64_t rx_hash_fields_mask; } rx_hash_conf;
  uint32_t source_qpn;
  uint64_t send_ops_flags;
};
struct ibv_qp_attr {
  enum ibv_qp_state qp_state, cur_qp_state;
  int path_mtu, path_mig_state;
  uint32_t qkey, rq_psn, sq_psn, dest_qp_num;
  unsigned qp_access_flags;
  struct ibv_qp_cap cap;
  struct ibv_ah_attr ah_attr, alt_ah_attr;
  uint16_t pkey_index, alt_pkey_index;
  uint8_t en_sqd_async_notify, sq_draining, max_rd_atomic, max_dest_rd_atomic, min_rnr_timer, port_num, timeout, retry_cnt,
      rnr_retry, alt_port_num, alt_timeout;
  uint32_t rate_limit;
};
struct ibv_sge { uint64_t addr; uint32_t length, lkey; };
struct ibv_data_buf { void *addr; size_t length; };
struct ibv_send_wr {
  uint64_t wr_id;
  struct ibv_send_wr *next;
  struct ibv_sge *sg_list;
  int num_sge, opcode;
  unsigned send_flags;
  __be32 imm_data;
  union {
    struct { uint64_t remote_addr; uint32_t rkey; } rdma;
    struct { uint64_t remote_addr, compare_add, swap; uint32_t rkey; } atomic;
    struct { struct ibv_ah *ah; uint32_t remote_qpn, remote_qkey; } ud;
  } wr;
  uint32_t remote_srqn;
  uint64_t unplayed[6];
};
struct ibv_recv_wr { uint64_t wr_id; struct ibv_recv_wr *next; struct ibv_sge *sg_list; int num_sge; };
struct ibv_wc {
  uint64_t wr_id;
  enum ibv_wc_status status;
  int opcode;
  uint32_t vendor_err, byte_len;
  __be32 imm_data;
  uint32_t qp_num, src_qp;
  unsigned wc_flags;
  uint16_t pkey_index, slid;
  uint8_t sl, dlid_path_bits;
};
struct ibv_async_event { union { void *object; int port_num; } element; enum ibv_event_type event_type; };
struct ibv_ece { uint32_t vendor_id, options, comp_mask; };

struct ibv_qp_ex {
  struct ibv_qp qp_base;
  uint64_t comp_mask, wr_id;
  unsigned wr_flags;
  void (*wr_atomic_cmp_swp)(struct ibv_qp_ex *, uint32_t rkey, uint64_t at, uint64_t compare, uint64_t swap);
  void (*wr_atomic_fetch_add)(struct ibv_qp_ex *, uint32_t rkey, uint64_t at, uint64_t add);
  Unplayed *wr_bind_mw, *wr_local_inv;
  void (*wr_rdma_read)(struct ibv_qp_ex *, uint32_t rkey, uint64_t at);
  void (*wr_rdma_write)(struct ibv_qp_ex *, uint32_t rkey, uint64_t at);
  void (*wr_rdma_write_imm)(struct ibv_qp_ex *, uint32_t rkey, uint64_t at, __be32 imm);
  void (*wr_send)(struct ibv_qp_ex *);
  void (*wr_send_imm)(struct ibv_qp_ex *, __be32 imm);
  Unplayed *wr_send_inv, *wr_send_tso;
  void (*wr_set_ud_addr)(struct ibv_qp_ex *, struct ibv_ah *, uint32_t qpn, uint32_t qkey);
  Unplayed *wr_set_xrc_srqn;
  void (*wr_set_inline_data)(struct ibv_qp_ex *, void *, size_t);
  void (*wr_set_inline_data_list)(struct ibv_qp_ex *, size_t, const struct ibv_data_buf *);
  void (*wr_set_sge)(struct ibv_qp_ex *, uint32_t lkey, uint64_t addr, uint32_t length);
  void (*wr_set_sge_list)(struct ibv_qp_ex *, size_t, const struct ibv_sge *);
  void (*wr_start)(struct ibv_qp_ex *);
  int (*wr_complete)(struct ibv_qp_ex *);
  void (*wr_abort)(struct ibv_qp_ex *);
  Unplayed *wr_atomic_write;
};

struct ibv_context_ops {  /* called by programs themselves, as inline functions of infiniband/verbs.h */
  void *_compat_query_device, *_compat_query_port, *_compat_pd[2], *_compat_mr[3];
  Unplayed *alloc_mw, *bind_mw, *dealloc_mw;
  void *_compat_create_cq;
  int (*poll_cq)(struct ibv_cq *, int, struct ibv_wc *);
  int (*req_notify_cq)(struct ibv_cq *, int solicited_only);
  void *_compat_cq[3], *_compat_srq[4];
  int (*post_srq_recv)(struct ibv_srq *, struct ibv_recv_wr *, struct ibv_recv_wr **bad);
  void *_compat_qp[4];
  int (*post_send)(struct ibv_qp *, struct ibv_send_wr *, struct ibv_send_wr **bad);
  int (*post_recv)(struct ibv_qp *, struct ibv_recv_wr *, struct ibv_recv_wr **bad);
  void *_compat_rest[5];
};
struct ibv_context {
  struct ibv_device *device;
  struct ibv_context_ops ops;
  int cmd_fd, async_fd, num_comp_vectors;
  pthread_mutex_t mutex;
  void *abi_compat;  /* all ones: a verbs_context lies around this */
};
struct verbs_context {  /* `sz` says how much of it there is, counted from its end */
  int (*query_port)(struct ibv_context *, uint8_t port, struct ibv_port_attr *, size_t bytes);
  Unplayed *unplayed_before[24];
  struct ibv_cq_ex *(*create_cq_ex)(struct ibv_context *, struct ibv_cq_init_attr_ex *);
  void *priv;
  int (*query_device_ex)(struct ibv_context *, const void *input, struct ibv_device_attr_ex *, size_t bytes);
  Unplayed *unplayed_flow[4], *open_qp;
  struct ibv_qp *(*create_qp_ex)(struct ibv_context *, struct ibv_qp_init_attr_ex *);
  int (*get_srq_num)(struct ibv_srq *, uint32_t *);
  Unplayed *create_srq_ex, *open_xrcd, *close_xrcd;
  uint64_t _ABI_placeholder3;
  size_t sz;
  struct ibv_context context;
};
#endif
