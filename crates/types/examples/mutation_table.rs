//! Prints the table of mutations as the page of formats must hold it.

fn main() {
    print!("{}", atoll_types::operation::table::markdown("mutation", atoll_types::Mutation::KINDS));
}
