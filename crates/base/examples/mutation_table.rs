//! Prints the table of mutations as the page of formats must hold it.

fn main() {
    print!("{}", atoll_base::operation::table::markdown("mutation", atoll_base::Mutation::KINDS));
}
