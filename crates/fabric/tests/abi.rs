//! The structures that `src/sys/abi.rs` declares are those of the installed headers. Without headers or a compiler there
//! is nothing to compare with, and the test says so.

#![allow(clippy::unwrap_used, missing_docs, dead_code)]

use std::fmt::Write;
use std::path::Path;
use std::process::Command;

#[path = "../src/sys/abi.rs"]
mod abi;

/// Our offset of a field beside C's expression for it.
macro_rules! offsets {
    ($($ours:ident = $theirs:literal: $($field:ident = $their_field:literal),+;)+) => {
        vec![$($((
            std::mem::offset_of!(abi::$ours, $field),
            format!("offsetof({}, {})", $theirs, $their_field),
        )),+),+]
    };
}

#[test]
fn structures_are_those_of_the_headers() {
    if !Path::new("/usr/include/rdma/fabric.h").exists() {
        eprintln!("libfabric-dev is not installed: nothing is compared");
        return;
    }
    let mut expected: Vec<(usize, String)> = offsets! {
        Fid = "struct fid": fclass = "fclass", context = "context", ops = "ops";
        FiOps = "struct fi_ops": close = "close", bind = "bind", control = "control";
        FiTxAttr = "struct fi_tx_attr": inject_size = "inject_size", size = "size", tclass = "tclass";
        FiRxAttr = "struct fi_rx_attr": total_buffered_recv = "total_buffered_recv", size = "size", iov_limit = "iov_limit";
        FiEpAttr = "struct fi_ep_attr": kind = "type", protocol = "protocol", max_msg_size = "max_msg_size",
            tx_ctx_cnt = "tx_ctx_cnt", rx_ctx_cnt = "rx_ctx_cnt";
        FiDomainAttr = "struct fi_domain_attr": name = "name", threading = "threading",
            control_progress = "control_progress", data_progress = "data_progress", resource_mgmt = "resource_mgmt",
            mr_mode = "mr_mode", mr_key_size = "mr_key_size", cq_cnt = "cq_cnt", max_ep_srx_ctx = "max_ep_srx_ctx";
        FiFabricAttr = "struct fi_fabric_attr": name = "name", prov_name = "prov_name", api_version = "api_version";
        FiInfo = "struct fi_info": caps = "caps", addr_format = "addr_format", src_addrlen = "src_addrlen",
            dest_addrlen = "dest_addrlen", src_addr = "src_addr", dest_addr = "dest_addr", handle = "handle",
            tx_attr = "tx_attr", rx_attr = "rx_attr", ep_attr = "ep_attr", domain_attr = "domain_attr",
            fabric_attr = "fabric_attr", nic = "nic";
        FidFabric = "struct fid_fabric": ops = "ops", api_version = "api_version";
        FiOpsFabric = "struct fi_ops_fabric": domain = "domain", passive_ep = "passive_ep", eq_open = "eq_open",
            trywait = "trywait";
        FidDomain = "struct fid_domain": ops = "ops", mr = "mr";
        FiOpsDomain = "struct fi_ops_domain": cq_open = "cq_open", endpoint = "endpoint", srx_ctx = "srx_ctx";
        FiOpsMr = "struct fi_ops_mr": reg = "reg";
        FidMr = "struct fid_mr": mem_desc = "mem_desc", key = "key";
        FidEq = "struct fid_eq": ops = "ops";
        FiOpsEq = "struct fi_ops_eq": read = "read", readerr = "readerr";
        FiEqAttr = "struct fi_eq_attr": size = "size", flags = "flags", wait_obj = "wait_obj", wait_set = "wait_set";
        FiEqCmEntry = "struct fi_eq_cm_entry": fid = "fid", info = "info", data = "data";
        FiEqErrEntry = "struct fi_eq_err_entry": fid = "fid", err = "err", err_data = "err_data",
            err_data_size = "err_data_size";
        FidCq = "struct fid_cq": ops = "ops";
        FiOpsCq = "struct fi_ops_cq": read = "read", readerr = "readerr";
        FiCqAttr = "struct fi_cq_attr": size = "size", format = "format", wait_obj = "wait_obj",
            wait_cond = "wait_cond", wait_set = "wait_set";
        FiCqMsgEntry = "struct fi_cq_msg_entry": op_context = "op_context", flags = "flags", len = "len";
        FiCqErrEntry = "struct fi_cq_err_entry": op_context = "op_context", len = "len", olen = "olen", err = "err",
            err_data = "err_data", err_data_size = "err_data_size";
        FidEp = "struct fid_ep": cm = "cm", msg = "msg", rma = "rma";
        FidPep = "struct fid_pep": cm = "cm";
        FiOpsCm = "struct fi_ops_cm": getname = "getname", getpeer = "getpeer", connect = "connect", listen = "listen",
            accept = "accept", reject = "reject", shutdown = "shutdown";
        FiOpsMsg = "struct fi_ops_msg": recv = "recv", send = "send";
        FiOpsRma = "struct fi_ops_rma": read = "read";
    };
    let values = [
        (abi::API_VERSION as usize, "FI_VERSION(1, 17)"),
        (abi::FI_MSG as usize, "FI_MSG"),
        (abi::FI_RMA as usize, "FI_RMA"),
        (abi::FI_READ as usize, "FI_READ"),
        (abi::FI_RECV as usize, "FI_RECV"),
        (abi::FI_SEND as usize, "FI_SEND"),
        (abi::FI_REMOTE_READ as usize, "FI_REMOTE_READ"),
        (abi::FI_NUMERICHOST as usize, "FI_NUMERICHOST"),
        (abi::FI_SOURCE as usize, "FI_SOURCE"),
        (abi::FI_MR_LOCAL as usize, "FI_MR_LOCAL"),
        (abi::FI_MR_VIRT_ADDR as usize, "FI_MR_VIRT_ADDR"),
        (abi::FI_MR_ALLOCATED as usize, "FI_MR_ALLOCATED"),
        (abi::FI_MR_PROV_KEY as usize, "FI_MR_PROV_KEY"),
        (abi::FI_PROGRESS_MANUAL as usize, "FI_PROGRESS_MANUAL"),
        (abi::FI_THREAD_DOMAIN as usize, "FI_THREAD_DOMAIN"),
        (abi::FI_RM_ENABLED as usize, "FI_RM_ENABLED"),
        (abi::FI_EP_MSG as usize, "FI_EP_MSG"),
        (abi::FI_PROTO_IWARP as usize, "FI_PROTO_IWARP"),
        (abi::FI_WAIT_FD as usize, "FI_WAIT_FD"),
        (abi::FI_CQ_FORMAT_MSG as usize, "FI_CQ_FORMAT_MSG"),
        (abi::FI_GETWAIT as usize, "FI_GETWAIT"),
        (abi::FI_ENABLE as usize, "FI_ENABLE"),
        (abi::FI_SHARED_CONTEXT, "FI_SHARED_CONTEXT"),
        (abi::FI_CONNREQ as usize, "FI_CONNREQ"),
        (abi::FI_CONNECTED as usize, "FI_CONNECTED"),
        (abi::FI_SHUTDOWN as usize, "FI_SHUTDOWN"),
        (abi::FI_EAVAIL as usize, "FI_EAVAIL"),
        (abi::FI_EAGAIN as usize, "FI_EAGAIN"),
        (std::mem::size_of::<abi::FiCqMsgEntry>(), "sizeof(struct fi_cq_msg_entry)"),
        (std::mem::size_of::<abi::FiEqErrEntry>(), "sizeof(struct fi_eq_err_entry)"),
    ];
    expected.extend(values.map(|(ours, theirs)| (ours, theirs.to_owned())));

    let mut program = String::from(
        "#include <stddef.h>\n#include <stdio.h>\n#include <string.h>\n#include <sys/uio.h>\n#include <rdma/fabric.h>\n\
         #include <rdma/fi_domain.h>\n#include <rdma/fi_endpoint.h>\n#include <rdma/fi_cm.h>\n#include <rdma/fi_rma.h>\n\
         #include <rdma/fi_errno.h>\nint main(void) {\n",
    );
    for (_, theirs) in &expected {
        writeln!(program, "printf(\"%llu\\n\", (unsigned long long)({theirs}));").unwrap();
    }
    program.push_str("return 0; }\n");
    let directory = tempfile::tempdir().unwrap();
    let (source, binary) = (directory.path().join("offsets.c"), directory.path().join("offsets"));
    std::fs::write(&source, program).unwrap();
    let compiled = match Command::new("cc").arg("-o").arg(&binary).arg(&source).output() {
        Ok(compiled) => compiled,
        Err(_) => return eprintln!("there is no C compiler: nothing is compared"),
    };
    assert!(compiled.status.success(), "{}", String::from_utf8_lossy(&compiled.stderr));
    let output = String::from_utf8(Command::new(&binary).output().unwrap().stdout).unwrap();
    let theirs: Vec<usize> = output.lines().map(|line| line.parse().unwrap()).collect();
    assert_eq!(theirs.len(), expected.len());
    for ((ours, what), theirs) in expected.iter().zip(theirs) {
        assert_eq!(*ours, theirs, "{what}");
    }
}
