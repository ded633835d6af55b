"""Digests of the files and of the numbers in them; constants, so that a changed file is noticed.

`FILE_SHA256` is of the bytes of the ready-made .npz files of a ZOO_DATA folder. `CONTENT_SHA256` is of the
numbers (little-endian float64, array after array: see `files.content_digest`) and serves originals whose
bytes we never saw.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

FILE_SHA256: Mapping[str, str] = MappingProxyType(
    {
        "uci/boston.npz": "3bb42cb425a00301a4fd1088159039a8bd8db5f1d7eb192b70cd99fc4dd1ee60",
        "uci/concrete.npz": "b5c683a4bcd6db047ad4c99794baffad8d9560cb7409f2f19fe72161d2a18977",
        "uci/energy.npz": "0f0d2fcd0c5109a4de1c52baf4403478cf1a6fe79b7d58f5fc0c8c6f8fb41531",
        "uci/kin8nm.npz": "a6c3dc0e32212f5cb32247f849e1a34392cf71144ce061f16fcf29a82cf84041",
        "uci/naval.npz": "7e08d4ed17d04c1d49c2256e992cd2d738533f0fb38619643c095b34c927ca97",
        "uci/power_plant.npz": "3a8e1e2c207b8c871a49631b3f31e6887da3954a81a5fcec59d8a8bb570d1d3a",
        "uci/protein.npz": "c5e866ffe0d243de9295ed249a6f9b0af318ffbd490cbb416555570108485083",
        "uci/wine_red.npz": "e43105fe2bf960606ccb57e7f8f5fc4486ee6e7dd38425be19cb4c9e05468228",
        "uci/yacht.npz": "6a9c491db76fcc176b3afacd572ad1ad9450edfa90354e54361772d0667e21b6",
        "toy/snelson.npz": "38a78e3faae334832bb2eb9147d88f59f8f2e5cea7f6a9ce44c603a6235c21a4",
        "toy/sip_bimodal.npz": "989f2a56da5d8e7b838473274bcf760bd8d1fdac2b46537fbb24c03388f40ca2",
        "toy/sip_heteroscedastic.npz": "f0d8c47d8ada607e29a53b19413e1a48049148acf349b63413d3b9d690068bc2",
        "large/airline_subset.npz": "8d4bc2693593996a1264db709d39673f02ec4f0c9da3587106b296447c65a216",
        "large/kin40k.npz": "2f43b84b965b63cf9cbe38e23a7603e67b07d91f257ad4e0cbe3b75b18d8586f",
        "varsel/us_crime.npz": "91a2f80de90c47f46dee9e975134a76e4d308b7cd5500cbddacca113a74717a8",
        "varsel/mjmcmc_sim_linear.npz": "a6bf13af17b182a1e23f1dfcd4f74532ef8f70e704aec2ba0cd672371f081adb",
        "varsel/mjmcmc_sim_logistic.npz": "4615c52631a7895ff52d9188e142a99c97120953ea93ee8345584d2c41093e1d",
        "posteriordb/sblrc-blr.npz": "869dfc18bd53e1e6dce075946f6a27b95e7c7d2c9e58761f918f4e17e3bb4840",
        "posteriordb/sblri-blr.npz": "1bca10f327d1784801bf003333267e8f83990388c0eba7d026f9ebb81acac5b7",
        "posteriordb/diamonds-diamonds.npz": (
            "daeb68fcb86cc697bfb0ee49e2f06bbbf36b127c05a989c94d638a90d06b8f3c"
        ),
        "posteriordb/kidiq-kidscore_interaction.npz": (
            "ccd82ded3cbc81c7cb86f5c1bf2bfddf2d4bab29ed87d4267062081ea07a83b2"
        ),
        "posteriordb/mesquite-logmesquite.npz": (
            "f7a68588f9a0d3da4e8890112ffe9e554f6ccd72320adccfcf8a0cc9a6a9af1b"
        ),
        "posteriordb/earnings-logearn_interaction_z.npz": (
            "a27434be771fddc31026b2c0bd8ff5a7c07aae30bb134b4ade68e381ebe82551"
        ),
        "graphs/dblp_ct1.npz": "2d39f8d8b35fcd4feb106877c7c78fd3d43d5c061fe41b60d8386919cd4a070b",
        "graphs/enzymes.npz": "b514d2814b6cf7e7be780c547afe2dfa758061bb76010cf4c23b4815318dfb00",
        "graphs/facebook_ct1.npz": "8e766e179b95129ae4ade385cdd756877575b08272a91654e4bb5da6a1b9a15a",
        "graphs/gen_community_small.npz": "8b48235e13744aef72212a86ef0ca803e21d51e35c6a73fcfad66879d4807a13",
        "graphs/gen_ego_small.npz": "782c9e977f25813e4220a06a270498070646d1c9ee05e742db7c6d5eb63f6566",
        "graphs/gen_grid.npz": "b334600e20ae03a7c5b8dd397a94de5633b1f98c13e15dc4cb287a329e8de4c5",
        "graphs/highschool_ct1.npz": "2bf459ac3d04f92f16dcf2ad9a3bcec1c7ff69a7e23058f04314259f51440dad",
        "graphs/infectious_ct1.npz": "0f00261a61ddf8c0d4c50d83ce676676938957b11614bc6824e5b3545e026d68",
        "graphs/mit_ct1.npz": "ccd0aa0438509b629910f63c4b2d175518a2333552b41b06032733c1315a10ca",
        "graphs/proteins.npz": "6242e17f8bab9230114eef43f553e5a1ab1a9c549764ab6cdaafa7c5bbbd694e",
        "graphs/tumblr_ct1.npz": "021cf911d30bd11915b3134d611cd707d7ebf7725b037f915ff2039f05f8f2cb",
        "posteriordb/nes2000-nes.npz": "bc74e26018433bff918c0e392b333ec001b44bbefe8ad9e7c27db30e34d071ba",
    }
)

CONTENT_SHA256: Mapping[str, str] = MappingProxyType(
    {
        "boston": "a452688f7de3e21b6013d6c370ad53e04c3181c33ad9f0dd91b8b2f67317e787",
        "concrete": "95cb952ae1ade7d55b866083620d52d512ccc12cabf2d5b48f19e558ffce6fd3",
        "energy": "f1b4ffffca1a4a6cbf7a814738731cb60bf9a7721b56e754e20cdca07a9ef9a0",
        "kin8nm": "62724b272be0bfde5e0518c43da7800caae1373d3a39a2ff69890921152b54d5",
        "naval": "b8ffc1b560c386ba06a9924fad7c9afbcbb0a48b740c528890d201f5560bb163",
        "power_plant": "bbe83d856e3255f5749587de7597a6fa48916bb1dce0865d3dc82d60fedd9d3d",
        "protein": "beb10439f37d88e0fc90722caefd6d8b269eb1edb77518bc1440593e2ff10f01",
        "wine_red": "ab3b807dc4b7b8ef574f2dc395e5aada904bd7941c1802f3b3c998738fe53323",
        "yacht": "2c3a6ae76cfa90785be14c92ae31031f0d15f65a4b3649a4eef8e361684f46e8",
        "diabetes": "e9c1f7559552854a24dc45b41c446ce5f79f96e5da081bcce24b57492720b3f7",
        "breast_cancer": "cdd5f37c36cbdfc2e5ee074cec7540fac54340874afb25917a673e446270d0d0",
        "digits": "f19a7d92591ca0a1ffc65ec172e8149afdff995e0d2c4cb0afd151f38471ff90",
        "snelson": "cb374755e1058385ce725ef8003256d4b13f33684df8fe00998bcd29cc057f48",
        "bimodal": "b649533c61f734ff64df6abab4515eeac0e7147e46cc1c8fdfe700bac1bdb3ac",
        "us_crime": "d897ec756c82ee14c44ae7ee52cebda9b28678c63b3c0a2d0821ff7000378a30",
        "mjmcmc_sim_linear": "e06b7b36dadf2f008b478ec35ac63e1ce37288888a86c4860643dd80835e9524",
        "mjmcmc_sim_logistic": "8bdd884d4e50891fb246c657e833f6fec36267446fb4e42cc159fb52cdaffbc8",
        "raisin": "7ef45131b9b8696f0a3ed200e2fa783cb8fddafa410a528eeb8558926894b7c3",
        "gallstone": "3405180eca264167521d4a3801904dfe029f26ed78fd314e97cbf3d72fc4188e",
        "posteriordb_sblrc": "d771f74746de4324bb2baa583ff7b8ef33c62d49b8164f3e785fa40835f5a756",
        "posteriordb_sblri": "3918e2d8aed8864532f8c55613811a03a52301ad89ad2d899ecfa151caed1c31",
        "posteriordb_diamonds": "ddafa1fa813901b5f0966a7a1a48feb71c1cf7ee8b0b9c804b93ccb76f9beeea",
        "posteriordb_kidiq_interaction": "b4ff53a3dfebb7870d8ac332383c977641715f8299cdd4e215b033ba947033b5",
        "posteriordb_logmesquite": "d7d8b374d7cc765d2426d582a7c8131b771853958e6fb2e5ac1983ff55259078",
        "posteriordb_logearn_interaction": "f2e50aa6d7c90cbbaf322b351af2b712ce9ec39c1a9876b59c5f1a5f0ca4a125",
        "posteriordb_nes2000": "c658a9e5be8e249f7921c64d1ff0bf011d1f7cc034aca40333e0d19f80e5dbff",
    }
)

#: Of the temporal sets of graphs: src, dst, time, edge_ptr.
GRAPHS_SHA256: Mapping[str, str] = MappingProxyType(
    {
        "dblp": "fdec83cf0e0524e80c63422f36ad85620ff8404cc016201ba6a2a18235283bc9",
        "facebook": "abceaa1cb5149df941c88d7f52d3f82d3a265014b0b295bb959dd60b0af753a1",
        "highschool": "f319c312f8ed1d23aa2c4e3ed10fe7ed5a4ce2f6bb074b65f0ea4ba53a2e97f1",
        "infectious": "45c625d153aa10e369e123f0007a2e923c7eb410c0eb1cc94b3e2b6b80d9c8af",
        "mit": "665533c2774fd33f20e97213725a9b3093869892f1bf95be545266a982f39af6",
        "tumblr": "d4c079d8b113b455cc996e0487933b1a9f9653b6147f56333957725904690200",
    }
)
