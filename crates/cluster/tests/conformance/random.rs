//! A long random sequence of requests goes to both servers; every answer must be the same, up to
//! the name of the cluster, and so must the history of events at the end.

use std::fmt::Write;

use etcd_client::{
    Client, Compare, CompareOp, DeleteOptions, Error, GetOptions, GetResponse, KeyValue, LeaseGrantOptions,
    LeaseTimeToLiveOptions, PutOptions, SortOrder, SortTarget, Txn, TxnOp, TxnOpResponse, TxnResponse,
    WatchOptions,
};

use crate::servers::Server;
use crate::watches::{describe, message};

/// Seeds 1 to this, or to the number in `ATOLL_CONFORMANCE_SEEDS`.
const SEEDS: u64 = 3;
const REQUESTS: usize = 350;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn both_servers_answer_alike() {
    let seeds = std::env::var("ATOLL_CONFORMANCE_SEEDS").map_or(SEEDS, |seeds| seeds.parse().unwrap());
    for seed in 1..=seeds {
        let (ours, theirs) = (Server::embedded().await, Server::etcd().await);
        let (mut our_client, mut their_client) = (ours.etcd_client().await, theirs.etcd_client().await);
        let mut random = Random(seed);
        let mut revision = 1;
        let mut compacted = 0;
        for step in 0..REQUESTS {
            let request = Request::draw(&mut random, revision);
            let ours = request.perform(&mut our_client).await;
            let theirs = request.perform(&mut their_client).await;
            assert_eq!(ours, theirs, "seed {seed}, step {step}: {request:?}");
            if let Request::Compact(at) = request
                && !theirs.starts_with("refused")
            {
                compacted = at;
            }
            let read = their_client.get("k", None).await.unwrap();
            revision = read.header().unwrap().revision();
        }
        let from = (compacted + 1).max(2);
        let (ours, theirs) =
            (history(&mut our_client, from, revision).await, history(&mut their_client, from, revision).await);
        assert!(!theirs.is_empty());
        assert_eq!(ours, theirs, "seed {seed}");
    }
}

/// SplitMix64, by its well-known constants.
struct Random(u64);

impl Random {
    fn below(&mut self, limit: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (mixed ^ (mixed >> 31)) % limit
    }

    fn coin(&mut self) -> bool {
        self.below(2) == 0
    }

    fn key(&mut self) -> String {
        format!("k{}", self.below(12))
    }

    fn value(&mut self) -> String {
        format!("v{}", self.below(5))
    }

    fn lease(&mut self) -> i64 {
        1 + self.below(3) as i64
    }

    fn op(&mut self) -> CompareOp {
        [CompareOp::Equal, CompareOp::Greater, CompareOp::Less, CompareOp::NotEqual][self.below(4) as usize]
    }
}

#[derive(Debug)]
enum Request {
    Put(String, String, PutOptions),
    Get(String, GetOptions),
    Delete(String, DeleteOptions),
    Txn(Txn),
    Grant(i64),
    Revoke(i64),
    LeaseKeys(i64),
    Compact(i64),
}

impl Request {
    fn draw(random: &mut Random, revision: i64) -> Request {
        match random.below(40) {
            0..12 => {
                let (value, options) = put_options(random);
                Request::Put(random.key(), value, options)
            }
            12..20 => Request::Get(random.key(), get_options(random)),
            20..25 => Request::Delete(random.key(), delete_options(random, true)),
            25..35 => Request::Txn(txn(random, revision, 2)),
            35 => Request::Grant(random.lease()),
            36 => Request::Revoke(random.lease()),
            37..39 => Request::LeaseKeys(random.lease()),
            _ => Request::Compact(revision - random.below(20) as i64),
        }
    }

    async fn perform(&self, client: &mut Client) -> String {
        let result = match self {
            Request::Put(key, value, options) => client
                .put(key.as_str(), value.as_str(), Some(options.clone()))
                .await
                .map(|response| format!("put {} {}", revision(response.header()), pairs(response.prev_key()))),
            Request::Get(key, options) => {
                client.get(key.as_str(), Some(options.clone())).await.map(|response| got(&response))
            }
            Request::Delete(key, options) => {
                client.delete(key.as_str(), Some(options.clone())).await.map(|response| {
                    let previous = pairs(response.prev_kvs());
                    format!("deleted {} {} {previous}", revision(response.header()), response.deleted())
                })
            }
            Request::Txn(txn) => client.txn(txn.clone()).await.map(|response| done(&response)),
            Request::Grant(id) => {
                let options = LeaseGrantOptions::new().with_id(*id);
                let granted = client.lease_grant(600, Some(options)).await;
                granted.map(|response| {
                    format!("granted {} {} {}", revision(response.header()), response.id(), response.ttl())
                })
            }
            Request::Revoke(id) => {
                client.lease_revoke(*id).await.map(|response| format!("revoked {}", revision(response.header())))
            }
            Request::LeaseKeys(id) => {
                let options = LeaseTimeToLiveOptions::new().with_keys();
                client.lease_time_to_live(*id, Some(options)).await.map(|response| {
                    let mut keys = response.keys().to_vec();
                    keys.sort();
                    format!("lease {} {keys:?}", response.granted_ttl())
                })
            }
            Request::Compact(at) => client
                .compact(*at, None)
                .await
                .map(|response| format!("compacted {}", revision(response.header()))),
        };
        match result {
            Ok(answer) => answer,
            Err(Error::GRpcStatus(status)) => format!("refused {:?} {}", status.code(), status.message()),
            Err(other) => panic!("{other}"),
        }
    }
}

fn put_options(random: &mut Random) -> (String, PutOptions) {
    let mut value = random.value();
    let mut options = PutOptions::new();
    if random.coin() {
        options = options.with_prev_key();
    }
    match random.below(8) {
        0 | 1 => options = options.with_lease(random.lease()),
        2 => options = options.with_ignore_lease(),
        3 => {
            options = options.with_ignore_value();
            if random.coin() {
                value.clear();
            }
        }
        _ => {}
    }
    (value, options)
}

fn get_options(random: &mut Random) -> GetOptions {
    let mut options = GetOptions::new();
    match random.below(5) {
        0 => options = options.with_prefix(),
        1 => options = options.with_range(random.key()),
        2 => options = options.with_from_key(),
        3 => options = options.with_all_keys(),
        _ => {}
    }
    if random.coin() {
        options = options.with_limit(random.below(5) as i64);
    }
    match random.below(6) {
        // By numbers that tie, the order is anyone's: sort only by what differs.
        0 => options = options.with_sort(SortTarget::Key, SortOrder::Descend),
        1 => options = options.with_sort(SortTarget::Key, SortOrder::Ascend),
        2 => options = options.with_keys_only(),
        3 => options = options.with_count_only(),
        4 => options = options.with_min_mod_revision(random.below(100) as i64),
        _ => {}
    }
    options
}

fn delete_options(random: &mut Random, may_be_endless: bool) -> DeleteOptions {
    let mut options = DeleteOptions::new();
    match random.below(8) {
        0 => options = options.with_prefix(),
        1 => options = options.with_range(random.key()),
        2 if may_be_endless => options = options.with_from_key(),
        _ => {}
    }
    if random.coin() { options.with_prev_key() } else { options }
}

fn txn(random: &mut Random, revision: i64, depth: u32) -> Txn {
    let mut compares = Vec::new();
    for _ in 0..random.below(3) {
        let (key, op) = (random.key(), random.op());
        let near = revision - random.below(10) as i64;
        let compare = match random.below(5) {
            0 => Compare::version(key, op, random.below(4) as i64),
            1 => Compare::create_revision(key, op, near),
            2 => Compare::mod_revision(key, op, near),
            3 => Compare::value(key, op, random.value()),
            _ => Compare::lease(key, op, random.below(4) as i64),
        };
        compares.push(if random.below(4) == 0 { compare.with_prefix() } else { compare });
    }
    let operations = |random: &mut Random| {
        let mut operations = Vec::new();
        for _ in 0..random.below(4) {
            operations.push(match random.below(6) {
                0 | 1 => {
                    let (value, options) = put_options(random);
                    TxnOp::put(random.key(), value, Some(options))
                }
                2 | 3 => TxnOp::get(random.key(), Some(get_options(random))),
                4 if depth > 0 => TxnOp::txn(txn(random, revision, depth - 1)),
                _ => {
                    // Not from a key on: etcd 3.4 overlooks that such a deletion overlaps with a put,
                    // and a put with `ignore_value` after it makes it panic. Ours refuses it.
                    let options = delete_options(random, false);
                    TxnOp::delete(random.key(), Some(options))
                }
            });
        }
        operations
    };
    let (success, failure) = (operations(random), operations(random));
    let mut txn = Txn::new();
    // The client panics when an empty list is given.
    if !compares.is_empty() {
        txn = txn.when(compares);
    }
    if !success.is_empty() {
        txn = txn.and_then(success);
    }
    if !failure.is_empty() {
        txn = txn.or_else(failure);
    }
    txn
}

fn revision(header: Option<&etcd_client::ResponseHeader>) -> i64 {
    header.unwrap().revision()
}

fn pairs<'a>(entries: impl IntoIterator<Item = &'a KeyValue>) -> String {
    let mut text = String::new();
    for entry in entries {
        write!(
            text,
            "[{}={} {} {} {} {}]",
            entry.key_str().unwrap(),
            entry.value_str().unwrap(),
            entry.create_revision(),
            entry.mod_revision(),
            entry.version(),
            entry.lease()
        )
        .unwrap();
    }
    text
}

fn got(response: &GetResponse) -> String {
    let (count, more) = (response.count(), response.more());
    format!("got {} {count} {more} {}", revision(response.header()), pairs(response.kvs()))
}

fn done(response: &TxnResponse) -> String {
    // Answers to nested transactions have no header in etcd 3.4.
    let mut text = format!("txn {}", response.succeeded());
    for response in response.op_responses() {
        let inner = match &response {
            TxnOpResponse::Get(response) => got(response),
            TxnOpResponse::Put(response) => {
                format!("put {} {}", revision(response.header()), pairs(response.prev_key()))
            }
            TxnOpResponse::Delete(response) => {
                format!("deleted {} {}", revision(response.header()), pairs(response.prev_kvs()))
            }
            TxnOpResponse::Txn(response) => done(response),
        };
        write!(text, "({inner})").unwrap();
    }
    text
}

async fn history(client: &mut Client, from: i64, to: i64) -> Vec<String> {
    let options = WatchOptions::new().with_all_keys().with_start_revision(from);
    let mut stream = client.watch("", Some(options)).await.unwrap();
    // A last event marks the end.
    client.put("z", "", None).await.unwrap();
    let mut events = Vec::new();
    loop {
        let response = message(&mut stream).await;
        assert!(!response.canceled(), "{response:?}");
        events.extend(describe(&response));
        if events.last().is_some_and(|event| *event == format!("+z=@{}(-)", to + 1)) {
            return events;
        }
    }
}
