//! Comparisons, branches, nesting and refusals.

use etcd_client::{Client, Compare, CompareOp, DeleteOptions, GetOptions, Txn, TxnOp, TxnOpResponse};
use tonic::Code;

use crate::keys::code;
use crate::servers::Server;

pub async fn all(server: &Server) {
    let mut client = server.etcd_client().await;
    comparisons(&mut client).await;
    one_revision(&mut client).await;
    reads_see_earlier_writes(&mut client).await;
    nested(&mut client).await;
    refusals(&mut client).await;
}

async fn holds(client: &mut Client, compare: Compare) -> bool {
    client.txn(Txn::new().when([compare])).await.unwrap().succeeded()
}

async fn comparisons(client: &mut Client) {
    client.put("c", "m", None).await.unwrap();
    client.put("c", "m", None).await.unwrap();
    let entry = client.get("c", None).await.unwrap().take_kvs().remove(0);
    use CompareOp::{Equal, Greater, Less, NotEqual};
    for (offset, expected) in [(-1, [Greater, NotEqual]), (0, [Equal, Equal]), (1, [Less, NotEqual])] {
        for op in [Equal, Greater, Less, NotEqual] {
            let wanted = expected.contains(&op);
            assert_eq!(holds(client, Compare::version("c", op, entry.version() + offset)).await, wanted);
            assert_eq!(holds(client, Compare::mod_revision("c", op, entry.mod_revision() + offset)).await, wanted);
            let created = entry.create_revision() + offset;
            assert_eq!(holds(client, Compare::create_revision("c", op, created)).await, wanted);
            assert_eq!(holds(client, Compare::lease("c", op, offset)).await, wanted);
            let value = ["l", "m", "n"][(offset + 1) as usize];
            assert_eq!(holds(client, Compare::value("c", op, value)).await, wanted);
        }
    }
    // An absent key has zeros for numbers, and a value that nothing equals or differs from.
    assert!(holds(client, Compare::version("none", Equal, 0)).await);
    assert!(holds(client, Compare::mod_revision("none", Less, 1)).await);
    assert!(!holds(client, Compare::value("none", Equal, "")).await);
    assert!(!holds(client, Compare::value("none", NotEqual, "x")).await);
    client.put("c2", "m", None).await.unwrap();
    assert!(holds(client, Compare::value("c", Equal, "m").with_prefix()).await);
    assert!(!holds(client, Compare::version("c", Equal, 2).with_prefix()).await);
}

async fn one_revision(client: &mut Client) {
    let before = client.get("c", None).await.unwrap().header().unwrap().revision();
    let txn = Txn::new().when([Compare::version("t1", CompareOp::Equal, 0)]).and_then([
        TxnOp::put("t1", "a", None),
        TxnOp::put("t2", "b", None),
        TxnOp::delete("c", None),
    ]);
    let response = client.txn(txn.clone()).await.unwrap();
    assert!(response.succeeded());
    assert_eq!(response.header().unwrap().revision(), before + 1);
    let found = client.get("t", Some(GetOptions::new().with_prefix())).await.unwrap();
    assert!(found.kvs().iter().all(|entry| entry.mod_revision() == before + 1));
    let refused = client.txn(txn).await.unwrap();
    assert!(!refused.succeeded());
    assert_eq!(refused.header().unwrap().revision(), before + 1);
}

async fn reads_see_earlier_writes(client: &mut Client) {
    let txn = Txn::new().and_then([
        TxnOp::get("w", None),
        TxnOp::put("w", "1", None),
        TxnOp::get("w", None),
        TxnOp::delete("t", Some(DeleteOptions::new().with_prefix().with_prev_key())),
        TxnOp::get("t1", None),
    ]);
    let response = client.txn(txn).await.unwrap();
    let revision = response.header().unwrap().revision();
    let mut seen = Vec::new();
    for response in response.op_responses() {
        match response {
            TxnOpResponse::Get(got) => seen.push((got.count(), got.header().unwrap().revision() - revision)),
            TxnOpResponse::Put(put) => seen.push((-1, put.header().unwrap().revision() - revision)),
            TxnOpResponse::Delete(deleted) => seen.push((deleted.deleted(), deleted.prev_kvs().len() as i64)),
            TxnOpResponse::Txn(_) => unreachable!(),
        }
    }
    assert_eq!(seen, [(0, -1), (-1, 0), (1, 0), (2, 2), (0, 0)]);
}

async fn nested(client: &mut Client) {
    // The inner comparison is made before the outer put.
    let inner = Txn::new()
        .when([Compare::version("n", CompareOp::Equal, 0)])
        .and_then([TxnOp::put("n-absent", "", None)])
        .or_else([TxnOp::put("n-present", "", None)]);
    let outer = Txn::new().and_then([TxnOp::put("n", "", None), TxnOp::txn(inner)]);
    let response = client.txn(outer).await.unwrap();
    let TxnOpResponse::Txn(inner) = response.op_responses().remove(1) else {
        panic!("a transaction was asked for")
    };
    assert!(inner.succeeded());
    let found = client.get("n", Some(GetOptions::new().with_prefix())).await.unwrap();
    let revisions: Vec<_> = found.kvs().iter().map(|entry| entry.mod_revision()).collect();
    assert_eq!(revisions, [response.header().unwrap().revision(); 2]);
}

async fn refusals(client: &mut Client) {
    let duplicate = (Code::InvalidArgument, "etcdserver: duplicate key given in txn request".to_owned());
    let twice = Txn::new().and_then([TxnOp::put("d", "1", None), TxnOp::put("d", "2", None)]);
    assert_eq!(code(client.txn(twice).await), duplicate);
    let delete = TxnOp::delete("a", Some(DeleteOptions::new().with_range("z")));
    let overlap = Txn::new().or_else([TxnOp::put("d", "1", None), delete]);
    assert_eq!(code(client.txn(overlap).await), duplicate);
    let deeper = Txn::new().and_then([TxnOp::put("d", "2", None)]);
    let overlap = Txn::new().and_then([TxnOp::put("d", "1", None), TxnOp::txn(deeper.clone())]);
    assert_eq!(code(client.txn(overlap).await), duplicate);
    // Both branches of a nested transaction may write a key, since only one is taken.
    let branches = deeper.or_else([TxnOp::put("d", "3", None)]);
    client.txn(Txn::new().and_then([TxnOp::txn(branches)])).await.unwrap();

    let many: Vec<_> = (0..600).map(|index| TxnOp::put(format!("m{index}"), "", None)).collect();
    assert_eq!(code(client.txn(Txn::new().and_then(many)).await).0, Code::InvalidArgument);
    // A put that fails undoes those before it.
    let lease = etcd_client::PutOptions::new().with_lease(4711);
    let partly = Txn::new().and_then([TxnOp::put("p1", "", None), TxnOp::put("p2", "", Some(lease))]);
    assert_eq!(code(client.txn(partly).await).0, Code::NotFound);
    assert_eq!(client.get("p1", None).await.unwrap().count(), 0);
}
