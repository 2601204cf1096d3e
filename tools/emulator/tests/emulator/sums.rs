//! How matrix instructions add, in each way that the emulator has.

use std::sync::LazyLock;

use crate::common::{compile, launch_of, run};
use crate::vectors::{self, warp::product};
use setrank_emulator::emulate::{Config, Sums};
use setrank_emulator::kernels::Kernels;

static WARP: LazyLock<Kernels> = LazyLock::new(|| compile("warp.cu"));

fn power(exponent: i32) -> f32 {
    2f32.powi(exponent)
}

/// The result of an instruction that adds these products, each the same in every row and column.
fn added(before: f32, products: &[(usize, f32)], sums: Sums) -> f32 {
    let narrow = |value: f32| (value.to_bits() >> 16) as u16;
    let mut row = [0; 16];
    products.iter().for_each(|&(k, product)| row[k] = narrow(product));
    let vector = product(&([row; 16], [[narrow(1.0); 8]; 16], [[before; 8]; 16]), 1);
    let words = run(&WARP, &launch_of(&vector), &Config::default().sums(sums)).unwrap();
    assert!(words.iter().all(|word| *word == words[0]), "{words:x?}");
    f32::from_bits(words[0])
}

#[test]
fn sums_are_cut_as_on_each_card() {
    let next = 1.0 + power(-23);
    for (products, nearest, ampere, hopper) in [
        // Two halves of a unit: of an f32 each is lost.
        (&[(0, power(-24)), (1, power(-24))][..], 1.0, next, next),
        // Another eight of them begins behind k = 7.
        (&[(0, power(-24)), (8, power(-24))], 1.0, 1.0, next),
        // Quarters of a unit.
        (&[(0, power(-25)), (1, power(-25)), (2, power(-25)), (3, power(-25))], 1.0, 1.0, next),
        // Nearer to the next than to 1.
        (&[(5, 1.5 * power(-24))], next, 1.0, 1.0),
        // What is cut of a negative product makes it smaller, and then of the sum.
        (&[(5, -power(-25))], 1.0, 1.0, 1.0 - power(-24)),
        (&[(0, f32::INFINITY)], f32::INFINITY, f32::INFINITY, f32::INFINITY),
        (&[], 1.0, 1.0, 1.0),
    ] {
        for (sums, right) in Sums::ALL.into_iter().zip([nearest, ampere, hopper]) {
            assert_eq!(added(1.0, products, sums), right, "{sums:?}: 1 and {products:?}");
            let negative: Vec<(usize, f32)> = products.iter().map(|&(k, product)| (k, -product)).collect();
            assert_eq!(added(-1.0, &negative, sums), -right, "{sums:?}: -1 and {negative:?}");
        }
    }
    for sums in Sums::ALL {
        assert!(added(0.0, &[(0, f32::INFINITY), (1, f32::NEG_INFINITY)], sums).is_nan());
        assert_eq!(added(0.0, &[(0, power(-120)), (9, power(-120))], sums), power(-119));
        assert_eq!(added(0.0, &[(0, power(100)), (9, -power(100))], sums), 0.0);
        // Subnormal, and nothing is cut.
        assert_eq!(added(0.0, &[(0, power(-130)), (9, -power(-133))], sums), power(-130) - power(-133));
        assert_eq!(added(power(-128), &[(3, power(-132))], sums), power(-128) + power(-132));
    }
}

/// What the check of a GPU expects of matrix instructions is exact on every card.
#[test]
fn vectors_do_not_depend_on_it() {
    for source in ["warp", "wgmma_sm90"] {
        let kernels = compile(&format!("{source}.cu"));
        let of_source = vectors::ALL.iter().filter(|micro| micro.source == source);
        for vector in of_source.flat_map(|micro| (micro.vectors)()) {
            let launch = launch_of(&vector);
            for sums in Sums::ALL {
                let words = run(&kernels, &launch, &Config::default().sums(sums)).unwrap();
                assert_eq!(vector.wrong(&words), [0; 0], "{}, {sums:?}", vector.kernel);
            }
        }
    }
}
