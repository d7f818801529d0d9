//! Transactions: comparisons first, all of them against the state before the transaction, nested
//! ones included; then the chosen operations, all at one revision.

use std::cmp::Ordering;
use std::collections::HashSet;

use tonic::Status;

use super::change::{Change, check_put};
use super::limits;
use super::proto::{
    Compare, RequestOp, ResponseOp, TxnRequest, TxnResponse, compare, request_op::Request, response_op::Response,
};
use super::span::Span;
use super::state::{Entry, State};
use super::status;

/// Refuses requests that are invalid in every state: too many operations, empty keys, a key written twice.
pub fn check(txn: &TxnRequest) -> Result<(), Status> {
    check_sizes(txn, limits::TXN_OPERATIONS)?;
    check_overlaps(&txn.success)?;
    check_overlaps(&txn.failure)?;
    Ok(())
}

/// Returns true if no branch writes, so that it need not wait for the writer.
pub fn is_read_only(txn: &TxnRequest) -> bool {
    txn.success.iter().chain(&txn.failure).all(|operation| match &operation.request {
        Some(Request::RequestRange(_)) | None => true,
        Some(Request::RequestTxn(inner)) => is_read_only(inner),
        Some(Request::RequestPut(_) | Request::RequestDeleteRange(_)) => false,
    })
}

/// Applies a checked transaction; on an error the change must be dropped.
pub fn apply(change: &mut Change, txn: &TxnRequest) -> Result<TxnResponse, Status> {
    let path = choose(change.state(), txn)?;
    perform(change, txn, &path)
}

/// Which branch a transaction takes, and the ones nested in that branch.
struct Path {
    succeeded: bool,
    nested: Vec<Path>,
}

fn branch(txn: &TxnRequest, succeeded: bool) -> &[RequestOp] {
    if succeeded { &txn.success } else { &txn.failure }
}

fn choose(state: &State, txn: &TxnRequest) -> Result<Path, Status> {
    let mut succeeded = true;
    for comparison in &txn.compare {
        succeeded &= holds(state, comparison)?;
    }
    let mut nested = Vec::new();
    for operation in branch(txn, succeeded) {
        if let Some(Request::RequestTxn(inner)) = &operation.request {
            nested.push(choose(state, inner)?);
        }
    }
    Ok(Path { succeeded, nested })
}

fn perform(change: &mut Change, txn: &TxnRequest, path: &Path) -> Result<TxnResponse, Status> {
    let mut nested = path.nested.iter();
    let mut responses = Vec::new();
    for operation in branch(txn, path.succeeded) {
        let response = match &operation.request {
            Some(Request::RequestRange(request)) => Some(Response::ResponseRange(change.range(request)?)),
            Some(Request::RequestPut(request)) => Some(Response::ResponsePut(change.put(request)?)),
            Some(Request::RequestDeleteRange(request)) => {
                Some(Response::ResponseDeleteRange(change.delete_range(request)?))
            }
            Some(Request::RequestTxn(inner)) => match nested.next() {
                Some(path) => Some(Response::ResponseTxn(perform(change, inner, path)?)),
                None => None,
            },
            None => None,
        };
        responses.push(ResponseOp { response });
    }
    Ok(TxnResponse { header: change.bare_header(), succeeded: path.succeeded, responses })
}

/// A comparison over a range holds when it holds for every key in it; one over no key at all
/// compares with a key that was never written, whose value equals nothing.
fn holds(state: &State, comparison: &Compare) -> Result<bool, Status> {
    let target = compare::CompareTarget::try_from(comparison.target)
        .map_err(|_| Status::invalid_argument("unknown comparison target"))?;
    let wanted = compare::CompareResult::try_from(comparison.result)
        .map_err(|_| Status::invalid_argument("unknown comparison"))?;
    let span = Span::new(&comparison.key, &comparison.range_end);
    let mut any = false;
    for (_, entry) in state.select(&span) {
        any = true;
        if !satisfies(order(comparison, target, entry), wanted) {
            return Ok(false);
        }
    }
    if any {
        return Ok(true);
    }
    if target == compare::CompareTarget::Value {
        return Ok(false);
    }
    let absent = Entry { create_revision: 0, mod_revision: 0, version: 0, lease: 0, value: Vec::new() };
    Ok(satisfies(order(comparison, target, &absent), wanted))
}

fn order(comparison: &Compare, target: compare::CompareTarget, entry: &Entry) -> Ordering {
    use compare::{CompareTarget, TargetUnion};
    let number = |have: i64, given: Option<i64>| have.cmp(&given.unwrap_or(0));
    let union = comparison.target_union.as_ref();
    match target {
        CompareTarget::Version => number(
            entry.version,
            union.and_then(|union| if let TargetUnion::Version(given) = union { Some(*given) } else { None }),
        ),
        CompareTarget::Create => number(
            entry.create_revision,
            union.and_then(
                |union| if let TargetUnion::CreateRevision(given) = union { Some(*given) } else { None },
            ),
        ),
        CompareTarget::Mod => number(
            entry.mod_revision,
            union.and_then(|union| if let TargetUnion::ModRevision(given) = union { Some(*given) } else { None }),
        ),
        CompareTarget::Lease => number(
            entry.lease,
            union.and_then(|union| if let TargetUnion::Lease(given) = union { Some(*given) } else { None }),
        ),
        CompareTarget::Value => {
            let given = match union {
                Some(TargetUnion::Value(given)) => given.as_slice(),
                _ => &[],
            };
            entry.value.as_slice().cmp(given)
        }
    }
}

fn satisfies(order: Ordering, wanted: compare::CompareResult) -> bool {
    match wanted {
        compare::CompareResult::Equal => order.is_eq(),
        compare::CompareResult::NotEqual => order.is_ne(),
        compare::CompareResult::Greater => order.is_gt(),
        compare::CompareResult::Less => order.is_lt(),
    }
}

fn check_sizes(txn: &TxnRequest, budget: usize) -> Result<(), Status> {
    let operations = txn.compare.len().max(txn.success.len()).max(txn.failure.len());
    if operations > budget {
        return Err(status::too_many_operations());
    }
    if txn.compare.iter().any(|comparison| comparison.key.is_empty()) {
        return Err(status::empty_key());
    }
    for operation in txn.success.iter().chain(&txn.failure) {
        let key = match &operation.request {
            Some(Request::RequestRange(request)) => &request.key,
            // What is wrong in a branch is refused even if the other one is taken.
            Some(Request::RequestPut(request)) => {
                check_put(request)?;
                continue;
            }
            Some(Request::RequestDeleteRange(request)) => &request.key,
            Some(Request::RequestTxn(inner)) => {
                check_sizes(inner, budget - operations)?;
                continue;
            }
            None => return Err(status::key_not_found()),
        };
        if key.is_empty() {
            return Err(status::empty_key());
        }
    }
    Ok(())
}

/// Keys that one list of operations may write.
#[derive(Default)]
struct Writes {
    puts: HashSet<Vec<u8>>,
    deletes: Vec<Span>,
}

impl Writes {
    fn add_put(&mut self, key: &[u8], is_in_other_branch: bool) -> Result<(), Status> {
        if self.deletes.iter().any(|span| span.contains(key)) {
            return Err(status::duplicate_key());
        }
        if !self.puts.insert(key.to_vec()) && !is_in_other_branch {
            return Err(status::duplicate_key());
        }
        Ok(())
    }
}

/// No key may be put twice, nor put and deleted, since one revision can have only one of them. The two branches of
/// a nested transaction may write the same key: only one is taken.
fn check_overlaps(operations: &[RequestOp]) -> Result<Writes, Status> {
    let mut writes = Writes::default();
    for operation in operations {
        if let Some(Request::RequestDeleteRange(request)) = &operation.request {
            // Stricter than etcd 3.4, which overlooks a deletion without an end, and crashes when a
            // put after it wants to keep the value.
            writes.deletes.push(Span::new(&request.key, &request.range_end));
        }
    }
    for operation in operations {
        if let Some(Request::RequestTxn(inner)) = &operation.request {
            let taken = check_overlaps(&inner.success)?;
            let refused = check_overlaps(&inner.failure)?;
            for key in &taken.puts {
                writes.add_put(key, false)?;
            }
            for key in &refused.puts {
                writes.add_put(key, taken.puts.contains(key))?;
            }
            writes.deletes.extend(taken.deletes);
            writes.deletes.extend(refused.deletes);
        }
    }
    for operation in operations {
        if let Some(Request::RequestPut(request)) = &operation.request {
            writes.add_put(&request.key, false)?;
        }
    }
    Ok(writes)
}
