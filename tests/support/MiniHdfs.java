import java.io.BufferedReader;
import java.io.File;
import java.io.InputStreamReader;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.hdfs.MiniDFSCluster;
import org.apache.hadoop.hdfs.MiniDFSNNTopology;

/** An HDFS below a folder, with one or two namenodes, until its standard input ends. "failover" makes the other one active. */
public class MiniHdfs {
    public static void main(String[] arguments) throws Exception {
        int namenodes = Integer.parseInt(arguments[1]);
        Configuration conf = new Configuration();
        conf.set("dfs.replication", "1");
        MiniDFSCluster.Builder builder = new MiniDFSCluster.Builder(conf, new File(arguments[0])).numDataNodes(1);
        if (namenodes == 2) {
            builder.nnTopology(MiniDFSNNTopology.simpleHATopology());
        }
        MiniDFSCluster cluster = builder.build();
        int active = 0;
        if (namenodes == 2) {
            cluster.transitionToActive(active);
        }
        cluster.waitActive(active);
        StringBuilder ports = new StringBuilder("ready");
        for (int n = 0; n < namenodes; n++) {
            ports.append(" " + cluster.getNameNodePort(n) + " " + cluster.getNameNode(n).getHttpAddress().getPort());
        }
        System.out.println(ports);
        BufferedReader said = new BufferedReader(new InputStreamReader(System.in));
        while (said.readLine() != null) {
            cluster.transitionToStandby(active);
            active = 1 - active;
            cluster.transitionToActive(active);
            System.out.println("done");
        }
        cluster.shutdown(true);
        System.exit(0);
    }
}
