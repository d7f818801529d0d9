//! Generates the server side of the etcd v3 API from our own description of it.

fn main() -> std::io::Result<()> {
    tonic_prost_build::configure()
        .build_client(false)
        .compile_protos(&["proto/auth.proto", "proto/kv.proto", "proto/rpc.proto"], &["proto"])
}
