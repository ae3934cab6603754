// Runs a schedule packet by packet in ns-3: every port a host with one link to a switch, full duplex. Several switches
// are joined by one above them, to which each has a link without delay.
//
// Standard input, numbers only: tcp(0/1) fresh(0/1) payload(bytes) window(bytes) queue(packets) link_delay(ps) limit(ps), then
//   switches, per switch: bits/s up, bits/s down; 0 0: no link
//   ports,   per port:   bits/s out, bits/s in (all on the wire), its switch
//   stripes, per stripe: row, port out, port into, bytes          (in row order)
//   rows,    per row:    how many rows it waits for, and which
// Standard output: data packets, most bytes queued at one port of a switch, then per row the picosecond at which
// it had landed. Exit status 3 and a line on standard error when a packet was dropped or rows are left at the limit.
//
// Everything below the sockets is ns-3's own: UDP or TCP, IP forwarding, FIFO queues, links that store and forward.
// What this program adds is the order in which a port sends: whenever its link can take a packet, the lowest row
// among the stripes already begun, else the lowest ready row; rows whose connection has no room are passed over.

#include "ns3/core-module.h"
#include "ns3/drop-tail-queue.h"
#include "ns3/inet-socket-address.h"
#include "ns3/internet-stack-helper.h"
#include "ns3/ipv4-address-helper.h"
#include "ns3/ipv4-static-routing-helper.h"
#include "ns3/point-to-point-helper.h"
#include "ns3/point-to-point-module.h"
#include "ns3/tcp-socket-factory.h"
#include "ns3/tcp-socket.h"
#include "ns3/traffic-control-helper.h"
#include "ns3/traffic-control-layer.h"
#include "ns3/udp-socket-factory.h"

#include <cstdint>
#include <deque>
#include <functional>
#include <iostream>
#include <map>
#include <set>
#include <vector>

using namespace ns3;

namespace {

const Time kStart = MilliSeconds(100); // connections are open before the first byte of a stripe moves
const Time kUsed = MilliSeconds(50);   // and, unless they are to be fresh, have carried a packet: TCP scales no window
                                       // in a SYN (RFC 7323, 2.2), so that a sender has at most 64 KiB until an
                                       // acknowledgement has told it more

// From one port to another.
struct Flow {
    Ptr<Socket> socket;
    std::deque<std::pair<int, int64_t>> in_flight; // (stripe, bytes) in the order sent, which is the order received
};

struct Stripe {
    int row, out, into;
    int64_t to_send, to_land;
    Flow* flow;
};

struct Host {
    Ptr<Node> node;
    Ptr<PointToPointNetDevice> nic;
    Ipv4Address address;
    bool busy = false;          // it has been given a packet that has not left yet
    std::set<int> ready, begun; // stripes with bytes left to send
};

bool g_tcp;
int64_t g_payload, g_packets = 0;
uint32_t g_most_queued = 0;
std::vector<Host> g_hosts;
std::vector<Stripe> g_stripes;
std::vector<std::vector<int>> g_stripes_of, g_dependents; // by row
std::vector<int> g_parts, g_waiting;                      // by row: stripes to land, rows to wait for
std::vector<int64_t> g_landed;                            // by row: ps, -1 until then
std::map<std::pair<int, int>, Flow> g_flows;
size_t g_rows_left;

[[noreturn]] void Fail(const std::string& what) {
    std::cerr << what << std::endl;
    std::exit(3);
}

bool HasRoom(const Stripe& stripe) {
    return !g_tcp || int64_t(stripe.flow->socket->GetTxAvailable()) >= std::min(g_payload, stripe.to_send);
}

// Give the NIC of `port` one packet if it is idle.
void Pump(int port) {
    Host& host = g_hosts[port];
    if (host.busy || host.nic->GetQueue()->GetNPackets() > 0) {
        return;
    }
    for (std::set<int>* from : {&host.begun, &host.ready}) {
        for (int s : *from) {
            Stripe& stripe = g_stripes[s];
            if (!HasRoom(stripe)) {
                continue;
            }
            int64_t bytes = std::min(g_payload, stripe.to_send);
            stripe.to_send -= bytes;
            from->erase(s);
            if (stripe.to_send > 0) {
                host.begun.insert(s);
            }
            host.busy = true;
            g_packets++;
            stripe.flow->in_flight.emplace_back(s, bytes);
            if (stripe.flow->socket->Send(Create<Packet>(bytes)) != bytes) {
                Fail("a socket refused a packet");
            }
            return;
        }
    }
}

void MakeReady(int row) {
    for (int s : g_stripes_of[row]) {
        int port = g_stripes[s].out;
        g_hosts[port].ready.insert(s);
        Simulator::ScheduleNow(&Pump, port); // after all that lands at this instant
    }
}

void Land(int stripe, int64_t bytes) {
    g_stripes[stripe].to_land -= bytes;
    int row = g_stripes[stripe].row;
    if (g_stripes[stripe].to_land > 0 || --g_parts[row] > 0) {
        return;
    }
    g_landed[row] = (Simulator::Now() - kStart).GetPicoSeconds();
    for (int next : g_dependents[row]) {
        if (--g_waiting[next] == 0) {
            MakeReady(next);
        }
    }
    if (--g_rows_left == 0) {
        Simulator::Stop();
    }
}

void Receive(Flow* flow, Ptr<Socket> socket) {
    while (Ptr<Packet> packet = socket->Recv()) {
        for (int64_t bytes = packet->GetSize(); bytes > 0;) {
            auto& [stripe, left] = flow->in_flight.front();
            int64_t taken = std::min(bytes, left);
            int landed = stripe;
            bytes -= taken;
            left -= taken;
            if (left == 0) {
                flow->in_flight.pop_front();
            }
            if (landed >= 0) {
                Land(landed, taken);
            }
        }
    }
}

void Connect(int out, int into) {
    Flow* flow = &g_flows[{out, into}];
    TypeId type = g_tcp ? TcpSocketFactory::GetTypeId() : UdpSocketFactory::GetTypeId();
    uint16_t number = 5000 + out;
    Callback<void, Ptr<Socket>> receive([flow](Ptr<Socket> socket) { Receive(flow, socket); });
    Ptr<Socket> sink = Socket::CreateSocket(g_hosts[into].node, type);
    sink->Bind(InetSocketAddress(Ipv4Address::GetAny(), number));
    sink->SetRecvCallback(receive);
    if (g_tcp) {
        sink->Listen();
        sink->SetAcceptCallback(MakeNullCallback<bool, Ptr<Socket>, const Address&>(),
                                Callback<void, Ptr<Socket>, const Address&>(
                                    [receive](Ptr<Socket> socket, const Address&) { socket->SetRecvCallback(receive); }));
    }
    flow->socket = Socket::CreateSocket(g_hosts[out].node, type);
    flow->socket->Bind();
    flow->socket->Connect(InetSocketAddress(g_hosts[into].address, number));
    flow->socket->SetSendCallback(Callback<void, Ptr<Socket>, uint32_t>([out](Ptr<Socket>, uint32_t) { Pump(out); }));
}

// One packet of no stripe.
void Use(Flow* flow) {
    flow->in_flight.emplace_back(-1, g_payload);
    if (flow->socket->Send(Create<Packet>(g_payload)) != g_payload) {
        Fail("a socket refused a packet");
    }
}

void Dropped(Ptr<const Packet>) {
    Fail("a packet was dropped");
}

void Watch(Ptr<Object> where, const std::string& what, std::function<void(Ptr<const Packet>)> then) {
    NS_ABORT_UNLESS(where->TraceConnectWithoutContext(what, Callback<void, Ptr<const Packet>>(then)));
}

// A link whose ends send at these rates.
NetDeviceContainer Join(PointToPointHelper& link, Ptr<Node> lower, Ptr<Node> upper, uint64_t up, uint64_t down) {
    NetDeviceContainer ends = link.Install(lower, upper);
    for (uint32_t end : {0, 1}) {
        Ptr<PointToPointNetDevice> device = DynamicCast<PointToPointNetDevice>(ends.Get(end));
        device->SetDataRate(DataRate(end ? down : up));
        Watch(device, "MacTxDrop", Dropped);
        Watch(device, "PhyRxDrop", Dropped);
        Watch(device->GetQueue(), "Drop", Dropped);
    }
    return ends;
}

// How much waits at one end of a link, which is a switch's.
void CountQueued(Ptr<NetDevice> end) {
    Callback<void, uint32_t, uint32_t> queued([](uint32_t, uint32_t now) { g_most_queued = std::max(g_most_queued, now); });
    Ptr<Object> queue = DynamicCast<PointToPointNetDevice>(end)->GetQueue();
    NS_ABORT_UNLESS(queue->TraceConnectWithoutContext("BytesInQueue", queued));
}

void Build(int64_t queue, int64_t delay_ps) {
    InternetStackHelper stack;
    Ipv4StaticRoutingHelper routing;
    stack.SetIpv6StackInstall(false);
    stack.SetRoutingHelper(routing);
    Ipv4AddressHelper addresses("10.0.0.0", "255.255.255.252");
    PointToPointHelper link, above; // between switches a packet only waits
    for (PointToPointHelper* each : {&link, &above}) {
        each->SetQueue("ns3::DropTailQueue<Packet>", "MaxSize", StringValue(std::to_string(queue) + "p"));
        each->SetDeviceAttribute("Mtu", UintegerValue(65000));
    }
    link.SetChannelAttribute("Delay", TimeValue(PicoSeconds(delay_ps)));
    auto place = [&](const NetDeviceContainer& ends) {
        Ipv4InterfaceContainer where = addresses.Assign(ends);
        addresses.NewNetwork();
        TrafficControlHelper().Uninstall(ends); // helpers add FqCoDel, which drops; the device's FIFO is the queue
        return where;
    };
    auto node = [&] {
        Ptr<Node> made = CreateObject<Node>();
        stack.Install(made);
        Watch(made->GetObject<TrafficControlLayer>(), "TcDrop", Dropped); // it drops before a full queue would
        return made;
    };
    auto routes = [&](Ptr<Node> of) { return routing.GetStaticRouting(of->GetObject<Ipv4>()); };

    Ptr<Node> top = node();
    int count, ports;
    std::cin >> count;
    std::vector<Ptr<Node>> switches;
    std::map<int, std::pair<Ipv4Address, uint32_t>> down_to; // from the top: address and interface
    for (int i = 0; i < count; i++) {
        uint64_t up, down;
        std::cin >> up >> down;
        switches.push_back(node());
        if (up > 0) {
            NetDeviceContainer ends = Join(above, switches[i], top, up, down);
            Ipv4InterfaceContainer where = place(ends);
            CountQueued(ends.Get(0));
            CountQueued(ends.Get(1));
            routes(switches[i])->SetDefaultRoute(where.GetAddress(1), where.Get(0).second);
            down_to[i] = {where.GetAddress(0), where.Get(1).second};
        }
    }
    std::cin >> ports;
    g_hosts.resize(ports);
    for (int i = 0; i < ports; i++) {
        uint64_t out, in;
        int at;
        std::cin >> out >> in >> at;
        Host& host = g_hosts[i];
        host.node = node();
        NetDeviceContainer ends = Join(link, host.node, switches.at(at), out, in);
        Ipv4InterfaceContainer where = place(ends);
        CountQueued(ends.Get(1));
        host.nic = DynamicCast<PointToPointNetDevice>(ends.Get(0));
        host.address = where.GetAddress(0);
        routes(host.node)->SetDefaultRoute(where.GetAddress(1), where.Get(0).second);
        if (down_to.contains(at)) {
            routes(top)->AddHostRouteTo(host.address, down_to[at].first, down_to[at].second);
        }
        Watch(host.nic, "PhyTxEnd", [i](Ptr<const Packet>) {
            g_hosts[i].busy = false;
            Simulator::ScheduleNow(&Pump, i);
        });
    }
}

} // namespace

int main() {
    int64_t fresh, window, queue, delay_ps, limit_ps;
    int stripes, rows;
    Time::SetResolution(Time::PS);
    std::cin >> g_tcp >> fresh >> g_payload >> window >> queue >> delay_ps >> limit_ps;
    Config::SetDefault("ns3::TcpSocket::SegmentSize", UintegerValue(g_payload));
    Config::SetDefault("ns3::TcpSocket::SndBufSize", UintegerValue(window));
    Config::SetDefault("ns3::TcpSocket::RcvBufSize", UintegerValue(window));
    Config::SetDefault("ns3::TcpSocket::InitialCwnd", UintegerValue(window / g_payload + 1));
    Config::SetDefault("ns3::TcpSocket::TcpNoDelay", BooleanValue(true));
    Build(queue, delay_ps);
    std::cin >> stripes;
    for (int s = 0; s < stripes; s++) {
        Stripe stripe;
        std::cin >> stripe.row >> stripe.out >> stripe.into >> stripe.to_send;
        stripe.to_land = stripe.to_send;
        if (!g_flows.contains({stripe.out, stripe.into})) {
            Connect(stripe.out, stripe.into);
        }
        stripe.flow = &g_flows[{stripe.out, stripe.into}];
        g_stripes.push_back(stripe);
    }
    std::cin >> rows;
    g_stripes_of.resize(rows);
    g_dependents.resize(rows);
    g_parts.resize(rows);
    g_waiting.resize(rows);
    g_landed.assign(rows, -1);
    g_rows_left = rows;
    for (int s = 0; s < stripes; s++) {
        g_stripes_of[g_stripes[s].row].push_back(s);
        g_parts[g_stripes[s].row]++;
    }
    for (int row = 0; row < rows; row++) {
        std::cin >> g_waiting[row];
        for (int i = 0, dep; i < g_waiting[row] && std::cin >> dep; i++) {
            g_dependents[dep].push_back(row);
        }
    }
    if (!std::cin) {
        Fail("bad input");
    }
    for (int row = 0; row < rows; row++) {
        if (g_waiting[row] == 0) {
            Simulator::Schedule(kStart, &MakeReady, row);
        }
    }
    if (g_tcp && !fresh) {
        Time at = kUsed;
        for (auto& [ends, flow] : g_flows) {
            Simulator::Schedule(at, &Use, &flow);
            at += MicroSeconds(10);
        }
        NS_ABORT_UNLESS(at < kStart);
    }
    Simulator::Stop(kStart + PicoSeconds(limit_ps));
    Simulator::Run();
    if (g_rows_left > 0) {
        Fail(std::to_string(g_rows_left) + " of " + std::to_string(rows) + " transfers had not landed at the limit");
    }
    std::cout << g_packets << " " << g_most_queued << "\n";
    for (int64_t landed : g_landed) {
        std::cout << landed << "\n";
    }
    Simulator::Destroy();
    return 0;
}
