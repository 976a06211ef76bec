//! Searches on a device in changing company: the CUDA kernels, emulated on machines without a GPU.

mod backend;
mod company;
mod decoders;

use decoders::Kind;

#[test]
fn company_changes_nothing_on_a_device() {
    backend::on_device();
    let scripts: [(Kind, &[company::Event]); 2] = [
        (Kind::Rnnt, &[(0, 0, 3), (8, 1, 7), (0, 0, 4), (6, 2, 3), (4, 0, 5), (8, 5, 2), (5, 3, 9)]),
        (Kind::Tdt, &[(0, 0, 2), (6, 1, 2), (6, 1, 4), (4, 1, 1), (8, 2, 3)]),
    ];
    for (kind, events) in scripts {
        company::run(kind, 1, events).unwrap();
    }
}
